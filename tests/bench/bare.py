"""Records that carry no schema and no index: a bytes column against memcpy, and the time to a first batch.

The shards are the read benchmark's, without their sidecars: the reader scans the files, and a column that
was a tensor is a bytes column.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.bench import measuring
from tests.bench.data import CASES, RecordSet, write_shards


def _bare(records: RecordSet) -> list[str]:
    records.make("tfrecord", write_shards)

    def link(_: RecordSet, folder: Path) -> None:
        for path in records.files:
            os.link(path, folder / Path(path).name)

    records.make("bare", link)
    os.sync()
    return [str(path) for path in sorted(records.folder("bare").glob("*.tfrecord"))]


def bytes_column(way: str, folder: str, megabytes: float, seconds: float) -> dict[str, float]:
    """MB/s of 4 kB records by `torch()`, or by memcpy of the shards."""
    from cachecd_client import FileSet
    from tests.bench.contenders.baselines import Memcpy

    records = RecordSet(Path(folder), CASES["4kB"], megabytes)
    files = _bare(records)
    if way == "memcpy":
        with Memcpy().open(records) as passes:
            window = measuring.drain(passes, records, seconds)
    else:
        loader = FileSet(files).torch(records.batch_size)
        window = measuring.drain(lambda: iter(loader), records, seconds)
    return {"mb_s": window.records * records.record_bytes / window.seconds / 1e6}


def first_batch(way: str, folder: str, megabytes: float, seconds: float) -> dict[str, float]:
    """Milliseconds from the file names to the first batch of 32 records of 786 kB, shuffled."""
    from cachecd_client import FileSet

    records = RecordSet(Path(folder), CASES["786kB"], megabytes)
    files = _bare(records)
    for path in files:
        Path(path).read_bytes()  # into the page cache
    began = time.perf_counter()
    next(iter(FileSet(files).torch(records.batch_size)))
    return {"first_batch_ms": (time.perf_counter() - began) * 1e3}
