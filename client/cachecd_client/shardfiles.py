"""The files of a lease, by the numbers of its shards."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import overload

import numpy as np
from numpy.typing import NDArray


class ShardFiles(Sequence[str]):
    """The paths of all shards in some ranges of numbers, made when they are asked for.

    A lease may name a hundred thousand shards, and their paths take 40 ms to make, their numbers one:
    whoever takes the lease does not wait for that.
    """

    def __init__(self, folder: str, ranges: Sequence[Sequence[int]]) -> None:
        """`ranges` are inclusive, ascending pairs, as a manifest has them."""
        self.folder = folder
        self._ranges = ranges
        self._length = sum(last - first + 1 for first, last in ranges)

    def __len__(self) -> int:
        return self._length

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """Of the shards, in the same order."""
        parts = (np.arange(first, last + 1) for first, last in self._ranges)
        return np.concatenate([np.zeros(0, np.int64), *parts])

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self._path(number) for number in self.numbers[place].tolist()]
        return self._path(int(self.numbers[place]))

    def __iter__(self) -> Iterator[str]:
        return map(self._path, self.numbers.tolist())

    def _path(self, number: int) -> str:
        return f"{self.folder}/{number:010d}.tfrecord"


class JoinedFiles(Sequence[str]):
    """The files of several leases, one after another."""

    def __init__(self, parts: Sequence[ShardFiles]) -> None:
        self._parts = parts
        self._starts = [0, *accumulate(map(len, parts))]

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return list(self)[place]
        at = range(len(self))[place]  # IndexError, and from the end
        part = bisect_right(self._starts, at) - 1
        return self._parts[part][at - self._starts[part]]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._parts)
