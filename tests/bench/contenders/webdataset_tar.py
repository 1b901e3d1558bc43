"""webdataset: records as members of tar files, read one after another."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.contenders import torch_loading
from tests.bench.contenders.contract import Contender
from tests.bench.data import Record, RecordSet
from tests.bench.delivery import Passes


class Webdataset(Contender):
    """Its pipeline with shuffled shards and a shuffle buffer, in a DataLoader."""

    form = "webdataset"
    imports = ("torch", "webdataset")
    shuffled = "the files, and within 1,000 records or 256 MiB"
    checked = "nothing"

    def __init__(self, workers: int) -> None:
        self.name = f"webdataset:{workers} workers"
        self.tails = max(1, workers)
        self._workers = workers

    def convert(self, records: RecordSet, folder: Path) -> None:
        for shard, numbers in enumerate(records.shards):
            with tarfile.open(folder / f"{shard:05d}.tar", "w") as tar:
                for number in numbers:
                    for suffix, data in _members(records.record(number)).items():
                        member = tarfile.TarInfo(f"{number:09d}.{suffix}")
                        member.size = len(data)
                        tar.addfile(member, io.BytesIO(data))

    @contextmanager
    def open(self, records: RecordSet) -> Iterator[Passes]:
        import webdataset

        def decoded(sample: dict[str, Any]) -> Record:
            image = np.frombuffer(sample["image"], np.uint8).reshape(records.case.shape)
            record = {"image": image, "label": int(sample["label"])}
            if records.case.mixed:
                record["name"] = sample["name"]
                record["scores"] = np.frombuffer(sample["scores"], np.float32)
            return record

        files = [str(path) for path in sorted(records.folder(self.form).glob("*.tar"))]
        buffered = torch_loading.buffered(records)
        dataset = (
            webdataset.WebDataset(files, shardshuffle=len(files))
            .shuffle(buffered, initial=buffered)
            .map(decoded)
        )
        loader = torch_loading.loader(dataset, records, self._workers)
        yield lambda: iter(loader)


def _members(record: Record) -> dict[str, bytes]:
    members = {"image": record["image"].tobytes(), "label": str(record["label"]).encode()}
    if "scores" in record:
        members["name"] = record["name"]
        members["scores"] = np.array(record["scores"], np.float32).tobytes()
    return members


CONTENDERS: list[Contender] = [Webdataset(0), Webdataset(2)]
