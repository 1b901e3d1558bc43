"""mosaicml-streaming: records in shards of its own format, MDS, made by its writer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.bench.contenders import torch_loading
from tests.bench.contenders.contract import Contender
from tests.bench.data import RecordSet
from tests.bench.delivery import Passes


class Mosaic(Contender):
    """Its StreamingDataset over local shards, shuffled by its default algorithm, in a DataLoader."""

    form = "mds"
    imports = ("torch", "streaming")
    shuffled = "over blocks of 262,144 records"
    checked = "nothing"

    def __init__(self, workers: int) -> None:
        self.name = f"mosaicml-streaming:{workers} workers"
        self.tails = max(1, workers)
        self._workers = workers

    def convert(self, records: RecordSet, folder: Path) -> None:
        from streaming import MDSWriter

        shape = ",".join(map(str, records.case.shape))
        columns = {"image": f"ndarray:uint8:{shape}", "label": "int"}
        if records.case.mixed:
            columns |= {"name": "str", "scores": "ndarray:float32"}
        with MDSWriter(out=str(folder), columns=columns, size_limit=records.shard_bytes) as writer:
            for number in range(records.num_records):
                record = records.record(number)
                if records.case.mixed:
                    record["name"] = record["name"].decode()
                    record["scores"] = np.array(record["scores"], np.float32)
                writer.write(record)

    @contextmanager
    def open(self, records: RecordSet) -> Iterator[Passes]:
        from streaming import StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()  # of a measurement that was ended before its time
        dataset = StreamingDataset(
            local=str(records.folder(self.form)), shuffle=True, batch_size=records.batch_size
        )
        loader = torch_loading.loader(dataset, records, self._workers)
        yield lambda: iter(loader)
        clean_stale_shared_memory()


CONTENDERS: list[Contender] = [Mosaic(0), Mosaic(2)]
