"""This project's own ways to read: the core in three frameworks, and the stock pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cachecd_client import FileSet
from tests.bench.contenders.contract import Contender
from tests.bench.data import RecordSet
from tests.bench.delivery import Passes


class Core(Contender):
    """`FileSet.numpy`, `.torch` or `.tf` with every option at its default."""

    family = "ours"

    def __init__(self, method: str, *imports: str) -> None:
        self.name = f"ours:{method}"
        self.imports = imports
        self._method = method

    @contextmanager
    def open(self, records: RecordSet) -> Iterator[Passes]:
        loader = getattr(FileSet(records.files), self._method)(batch_size=records.batch_size)
        yield lambda: iter(loader)


class Stock(Contender):
    """`FileSet.tf_dataset`: a tf.data pipeline that the schema makes."""

    name = "ours:tf_dataset"
    family = "stock"
    imports = ("tensorflow",)

    @contextmanager
    def open(self, records: RecordSet) -> Iterator[Passes]:
        dataset = FileSet(records.files).tf_dataset(records.batch_size)
        yield lambda: iter(dataset)


CONTENDERS: list[Contender] = [
    Core("numpy"),
    Core("torch", "torch"),
    Core("tf", "tensorflow"),
    Stock(),
]
