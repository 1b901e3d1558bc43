"""The files of a lease, by the numbers of its shards."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray


class ShardFiles(Sequence[str]):
    """The paths of a lease's shards, in the order of their numbers; each is made when it is used.

    A lease may name a hundred thousand shards, whose paths take 40 ms and whose numbers take 2 ms to make.
    """

    def __init__(
        self, folder: str, streams: int, intervals: Sequence[Sequence[int]], versions: Iterable[Any] = (),
    ) -> None:  # fmt: skip
        """`intervals` and `versions` are those of a manifest."""
        self.folder = folder
        self._streams = streams
        self._intervals = intervals
        self._versions: dict[int, int] = dict(versions)
        self._length = sum(last - first + 1 for _, first, last in intervals)

    def __len__(self) -> int:
        return self._length

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """The numbers of the shards, ascending."""
        each = self._streams + 1
        parts = (
            np.arange(first, last + 1) * each + stream for stream, first, last in self._intervals
        )
        return np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))

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
        version = self._versions.get(number, 0)
        return f"{self.folder}/{number:010d}{f'.{version}' if version else ''}.tfrecord"


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
