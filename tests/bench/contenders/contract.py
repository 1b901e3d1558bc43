"""What a contender is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from tests.bench.data import RecordSet
from tests.bench.delivery import Passes

Family = Literal["baseline", "ours", "stock", "tf.data", "other"]


class Contender(ABC):
    """A way to read the records in shuffled batches of equal size, as arrays a trainer can use.

    A batch is a dict: `image` uint8 [rows, *shape] and `label` int64 [rows].
    """

    name: str
    family: Family = "other"
    form: str = "tfrecord"  # of the records on disk, and the folder's name
    imports: tuple[str, ...] = ()  # loaded before the process of a measurement is forked
    tails = 0  # workers that may each drop a last batch which is not full

    def convert(self, records: RecordSet, folder: Path) -> None:
        raise NotImplementedError(f"{self.name} reads the shards that are there")

    @abstractmethod
    def open(self, records: RecordSet) -> AbstractContextManager[Passes]:
        """What begins a pass over the records each time it is called."""
