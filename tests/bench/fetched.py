"""Bytes that are fetched for each byte of a source until it is whole: `python -m tests.bench.fetched`.

A real S3 server has the objects, and the daemon reaches it through a link that counts what the server
sends, listings and headers with it. A `tfrecord` source and tars are read in records of 100 kB.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachecd_client._core import encode_example
from tests.core.shards import frames
from tests.e2e.daemons import ExecutedDaemon, wait_until
from tests.e2e.link import Link
from tests.stores import S3Server, s3_server

BUCKET = "fetched"
PATIENCE = 300.0  # seconds
_RECORD = 100_000


@dataclass(frozen=True)
class Case:
    """Objects of `size` MB, in shards of `shard_size`."""

    format: str
    objects: int
    size: int
    shard_size: str

    @property
    def name(self) -> str:
        return f"{self.objects} {self.format} of {self.size} MB in shards of {self.shard_size}"

    def body(self, number: int) -> bytes:
        chance, count = random.Random(number), self.size * 1_000_000 // _RECORD
        if self.format == "tfrecord":
            record = frames([encode_example({"image": chance.randbytes(_RECORD), "label": 1})])
            return record * count
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as archive:
            for member in range(count):
                info = tarfile.TarInfo(f"{number:02d}-{member:06d}.bin")
                info.size = _RECORD
                archive.addfile(info, io.BytesIO(chance.randbytes(_RECORD)))
        return file.getvalue()


CASES = (
    Case("webdataset", 10, 7, "1MiB"),
    Case("webdataset", 1, 1074, "64MiB"),
    Case("tfrecord", 1, 1074, "64MiB"),
)


def measure(server: S3Server, case: Case, folder: Path) -> dict[str, float]:
    prefix, size = f"{case.format}-{case.size}-{case.objects}/", 0
    for number in range(case.objects):
        body = case.body(number)
        size += len(body)
        server.put(BUCKET, {f"{prefix}{number:04d}": body})
    source = {"url": f"s3://{BUCKET}/{prefix}", "format": case.format}
    with Link(server.endpoint) as link:
        environ = {**server.environ, "AWS_ENDPOINT_URL": link.endpoint}
        with ExecutedDaemon(
            folder,
            {"train": {"source": source, "grow": {"first": "1MiB"}}},
            environ,
            limit="8GiB",
            shard_size=case.shard_size,
            sampler={"workers": 2},
        ) as daemon:
            daemon.start()
            wait_until(lambda: daemon.train["whole"], PATIENCE, "all of it is cached")
            records = daemon.train["records"]
    assert records == case.objects * (case.size * 1_000_000 // _RECORD), records
    return {"source": size, "fetched": link.answered_bytes, "ratio": link.answered_bytes / size}


def run(cases: Sequence[Case], folder: Path | None) -> Iterator[tuple[Case, dict[str, float]]]:
    with s3_server() as server:
        server.bucket(BUCKET)
        for case in cases:
            with tempfile.TemporaryDirectory(prefix="cachecd-fetched-", dir=folder) as inner:
                yield case, measure(server, case, Path(inner))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fetched", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the cache goes; /tmp by default")
    parser.add_argument("--mb", type=int, default=1074, help="of the one large object")
    parser.add_argument("--json", type=Path, help="also write all figures there")
    options = parser.parse_args(arguments)
    large = [Case(c.format, 1, options.mb, c.shard_size) for c in CASES[1:]]
    document: dict[str, Any] = {}
    for case, found in run([CASES[0], *large], options.folder):
        document[case.name] = found
        sys.stdout.write(f"{case.name}: {found['ratio']:.4f}\n")
    if options.json:
        options.json.write_text(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
