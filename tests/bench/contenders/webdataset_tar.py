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

    name = "webdataset:2 workers"
    form = "webdataset"
    imports = ("torch", "webdataset")
    tails = 2

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
            return {"image": image, "label": int(sample["label"])}

        files = [str(path) for path in sorted(records.folder(self.form).glob("*.tar"))]
        most = min(1000, int((256 << 20) / records.record_bytes), records.num_records // 4)
        buffered = max(1, most)  # records, in each worker
        dataset = (
            webdataset.WebDataset(files, shardshuffle=len(files))
            .shuffle(buffered, initial=buffered)
            .map(decoded)
        )
        loader = torch_loading.loader(dataset, records, 2)
        yield lambda: iter(loader)


def _members(record: Record) -> dict[str, bytes]:
    return {"image": record["image"].tobytes(), "label": str(record["label"]).encode()}


CONTENDERS: list[Contender] = [Webdataset()]
