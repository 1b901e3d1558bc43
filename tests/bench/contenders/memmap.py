"""A DataLoader over np.memmap: the records are rows of an array, so nothing is parsed or checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.contenders import torch_loading
from tests.bench.contenders.contract import Contender
from tests.bench.data import RecordSet
from tests.bench.delivery import Passes


class Rows:
    """A map-style dataset that gathers a whole batch at once, which the DataLoader asks it for."""

    def __init__(self, records: RecordSet, folder: Path) -> None:
        self._images = np.memmap(
            folder / "images", np.uint8, "r", shape=(records.num_records, *records.case.shape)
        )
        self._labels = np.memmap(folder / "labels", np.int64, "r")

    def __len__(self) -> int:
        return len(self._labels)

    def __getitems__(self, rows: list[int]) -> dict[str, Any]:
        import torch

        return {
            "image": torch.from_numpy(self._images[rows]),
            "label": torch.from_numpy(self._labels[rows]),
        }


class Memmap(Contender):
    """torch's DataLoader with a random sampler over rows of a memory-mapped array."""

    name = "memmap:0 workers"
    form = "memmap"
    imports = ("torch",)

    def convert(self, records: RecordSet, folder: Path) -> None:
        shape = (records.num_records, *records.case.shape)
        images = np.memmap(folder / "images", np.uint8, "w+", shape=shape)
        for number in range(records.num_records):
            images[number] = records.record(number)["image"]
        images.flush()
        np.arange(records.num_records, dtype=np.int64).tofile(folder / "labels")

    @contextmanager
    def open(self, records: RecordSet) -> Iterator[Passes]:
        rows = Rows(records, records.folder(self.form))
        loader = torch_loading.loader(rows, records, 0, shuffle=True, collate_fn=_as_it_is)
        yield lambda: iter(loader)


def _as_it_is(batch: Any) -> Any:
    return batch


CONTENDERS: list[Contender] = [Memmap()]
