"""The shards of a dataset as a table, in the order of their numbers. Pure.

A column is an array of its own: a look at one property of a hundred thousand shards takes 0.1 to
0.4 MB of memory past the processor, and so 50 us, where rows would take 5 MB and a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.model import Ranges

ROW = np.dtype(
    [
        ("number", np.int64),
        ("records", np.int64),
        ("data_bytes", np.int64),
        ("allocated", np.int64),
        ("generation", np.int32),  # a place in a list of names
        ("holders", np.int32),  # leases that name it
        ("flags", np.uint8),
        ("digest", np.int64),
        ("delivered", np.int16),  # thousandths of its records, at most ALL
    ],
    align=True,
)
ALL = 1000
# Odd, and their bits as good as random: no formula makes two sets of real shards alike.
_MIX = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)
Rows = NDArray[np.void]
Numbers = NDArray[np.int64]
Places = NDArray[np.intp]
Column = NDArray[Any]


@dataclass(slots=True)
class Tally:
    """How many shards, and what is in them."""

    shards: int = 0
    records: int = 0
    data_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ShardSet:
    """A set of one dataset's shards: which, and what is in them.

    `checksum`: of each one's number, records, bytes and digest, so that shards of the same numbers and
    other contents do not pass for it.
    """

    ranges: Ranges
    records: int
    data_bytes: int
    checksum: int = field(default=0, compare=False)


class ShardTable:
    """Rows of ROW by number, each number once. `table["flags"]` is a column: what is written to it
    stays, until rows are inserted or removed."""

    def __init__(self) -> None:
        # Longer than _length, to grow cheaply.
        self._columns = {name: np.zeros(16, ROW[name]) for name in ROW.names or ()}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())

    def __getitem__(self, column: str) -> Column:
        return self._columns[column][: self._length]

    @property
    def numbers(self) -> Numbers:
        return self["number"]

    def place(self, number: object) -> int:
        """Where the row of a number is. KeyError."""
        at = int(np.searchsorted(self.numbers, number)) if isinstance(number, int) else 0
        if at < self._length and self.numbers[at] == number:
            return at
        raise KeyError(number)

    def places(self, numbers: Numbers) -> Places:
        """Where the rows of these numbers are, which are all there."""
        return np.searchsorted(self.numbers, numbers)

    def bounds(self, named: Ranges) -> tuple[Places, Places]:
        """Of each of these ranges of numbers, where its first row is and where that after its last."""
        ends = np.array(named, np.int64).reshape(-1, 2)
        first = np.searchsorted(self.numbers, ends[:, 0])
        return first, np.searchsorted(self.numbers, ends[:, 1], side="right")

    def within(self, named: Ranges) -> NDArray[np.bool_]:
        """Which rows these ranges of numbers name."""
        mine = np.zeros(self._length, np.bool_)
        for first, end in zip(*map(np.ndarray.tolist, self.bounds(named)), strict=True):
            mine[first:end] = True
        return mine

    def set_at(self, at: Places) -> ShardSet:
        """The shards in these rows."""
        numbers, records, data_bytes = (
            self[name][at] for name in ("number", "records", "data_bytes")
        )
        columns = zip((records, data_bytes, self["digest"][at]), _MIX, strict=True)
        mixed = numbers.astype(np.uint64) * _MIX[0]
        for column, factor in columns:
            mixed = (mixed ^ mixed >> np.uint64(29)) * factor + column.astype(np.uint64)
        mixed = (mixed ^ mixed >> np.uint64(32)) * _MIX[0]
        checksum = int((mixed ^ mixed >> np.uint64(29)).sum())
        return ShardSet(ranges_of(numbers), int(records.sum()), int(data_bytes.sum()), checksum)

    def insert(self, rows: Rows) -> Places:
        """Adds rows with new numbers, ascending; where they are now."""
        at = self.places(rows["number"])
        end = self._length + len(rows)
        for name, column in self._columns.items():
            if end > len(column):
                grown = np.zeros(max(end, 2 * len(column)), column.dtype)
                grown[: self._length] = column[: self._length]
                self._columns[name] = column = grown
            if len(at) and at[0] < self._length:
                column[:end] = np.insert(column[: self._length], at, rows[name])
            else:  # numbers count up, so nearly always
                column[self._length : end] = rows[name]
        self._length = end
        at = at + np.arange(len(rows))
        if len(at):
            around = self.numbers[max(at[0] - 1, 0) : at[-1] + 2]
            assert (np.diff(around) > 0).all(), "a shard number was added twice"
        return at

    def remove(self, number: int) -> None:
        """KeyError."""
        at = self.place(number)
        for column in self._columns.values():
            column[at : self._length - 1] = column[at + 1 : self._length].copy()
        self._length -= 1


def ranges_of(numbers: Numbers) -> Ranges:
    """Ascending numbers as inclusive ranges: [1, 2, 3, 7] -> ((1, 3), (7, 7))."""
    if not len(numbers):
        return ()
    ends = np.flatnonzero(np.diff(numbers) != 1)
    firsts = numbers[np.concatenate([[0], ends + 1])]
    lasts = numbers[np.concatenate([ends, [len(numbers) - 1]])]
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))


def numbers_of(named: Ranges) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """All numbers of these ranges, ascending."""
    parts = [np.arange(first, last + 1, dtype=np.int64) for first, last in named]
    return np.concatenate([np.zeros(0, np.int64), *parts])
