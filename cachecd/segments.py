"""Which unit of a listing is the how-manieth of which source, and which may be walked. Pure.

A listing of several sources has them by turns, each block of one source alone. Units are numbered over
all; a unit's *ordinal* counts those of its own source, whose name its key begins with ("0/cats/1.jpg").
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

# The first block that may be walked while the listing runs: a page of most stores. Each after it is
# as long as all before it together.
_FIRST_END = 1000


def key_in(source: int, key: str) -> str:
    """The key of an object among those of several sources."""
    return f"{source}/{key}"


def source_of(key: str) -> tuple[int, str]:
    """The source of such a key, and the object's key there."""
    source, _, own = key.partition("/")
    return int(source), own


class Segments:
    """Runs of units of one source, in the order of their numbers, which begin at 0.

    One thread may add while others ask for what there was.
    """

    def __init__(self, sources: int = 1) -> None:
        self.lengths = [0] * sources
        """How many units each source has."""
        self.bytes = [0] * sources
        """Of the units of each."""
        self._marks: list[list[int]] = [[] for _ in range(sources)]  # lengths when it was complete
        self.total = 0
        """How many there are of all together: at least as many as each source is said to have."""
        # Of each run: its source, its first ordinal and its first number; and the same for each source.
        self._sources: list[int] = []
        self._ordinals: list[int] = []
        self._begins: list[int] = []
        self._own_begins: list[list[int]] = [[] for _ in range(sources)]
        self._own_ordinals: list[list[int]] = [[] for _ in range(sources)]

    def add(self, source: int, units: int, size: int = 0) -> None:
        """The next `units`, of `size` bytes together, are of this source."""
        if self._sources[-1:] != [source]:
            ordinal = self.lengths[source]
            self._sources.append(source)
            self._ordinals.append(ordinal)
            self._begins.append(self.total)  # last: a reader finds a run by it
            self._own_begins[source].append(self.total)
            self._own_ordinals[source].append(ordinal)
        self.total += units
        self.lengths[source] += units
        self.bytes[source] += size

    def mark(self, source: int) -> None:
        """Here the source was listed to its end, perhaps not for the first time."""
        if self._marks[source][-1:] != [self.lengths[source]]:
            self._marks[source].append(self.lengths[source])

    @property
    def all_marked(self) -> bool:
        """Whether each of them was."""
        return all(self._marks)

    def marked(self, source: int) -> int | None:
        """How long it was when it was last listed to its end; None if it never was."""
        return self._marks[source][-1] if self._marks[source] else None

    def ends(self, source: int, early: bool) -> tuple[int, ...]:
        """The ends of the blocks of a source that may be walked, as ordinals. They follow from its listing
        alone, not from when it was interrupted: where it was complete, and, if units may be walked so
        `early`, between these at doubling distances."""
        found: list[int] = []
        begin = 0
        for mark in (*self._marks[source], None):
            end, limit = begin + _FIRST_END, self.lengths[source] + 1 if mark is None else mark
            while early and end < limit:
                found.append(end)
                end += end - begin
            if mark is not None:
                found.append(mark)
                begin = mark
        return tuple(found)

    def numbers(self, source: int, ordinals: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The numbers of these units of a source."""
        firsts = np.array(self._own_ordinals[source], np.uint64)
        begins = np.array(self._own_begins[source][: len(firsts)], np.uint64)
        if len(firsts) <= 1:
            return ordinals + begins[0] if len(firsts) and begins[0] else ordinals
        run = firsts.searchsorted(ordinals, "right") - 1
        found: NDArray[np.uint64] = begins[run] + (ordinals - firsts[run])
        return found

    def places(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Of which source each of these units is, and its ordinal there."""
        if len(self.lengths) == 1:
            return np.zeros(len(numbers), np.int64), numbers
        begins = np.array(self._begins, np.int64)
        sources, ordinals = (
            np.array(of_all[: len(begins)], np.int64) for of_all in (self._sources, self._ordinals)
        )
        run = begins.searchsorted(numbers, "right") - 1
        return sources[run], ordinals[run] + (numbers - begins[run])
