"""Several sources in memory: their listing by turns, and what samplers make of an assignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cachecd.marks import Marks
from cachecd.model import Assignment, Outcome, UnitSlice
from cachecd.segments import Segments
from tests.units import SHARD_SIZE


@dataclass(frozen=True)
class Kind:
    """A source: how many units it has, of so many records each, which are so large in the source and in
    a shard; and the length of the first block of its listing."""

    units: int
    records: int = 1
    size: int = 1000
    written: int = 1000
    first_end: int = 10


class Several:
    """A listing of several sources, by turns of five units each: as far as `listed` turns."""

    id = "i"
    turn = 5

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.kinds = kinds
        self.complete = False
        self.gone = Marks()
        self.segments = Segments(len(kinds))
        self._sizes: list[int] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def go_on(self, turns: int) -> None:
        for _ in range(turns):
            if self.complete:
                return
            source = self._next % len(self.kinds)
            self._next += 1
            kind, length = self.kinds[source], self.segments.lengths[source]
            if more := min(kind.units - length, self.turn):
                self._sizes += [kind.size * kind.records] * more
                self.segments.add(source, more, more * kind.size * kind.records)
            if self.segments.lengths[source] == kind.units:
                self.segments.mark(source)
            self.complete = self.segments.all_marked

    def ends_of(self, source: int) -> list[int]:
        length, first = self.segments.lengths[source], self.kinds[source].first_end
        ends = [first << k for k in range(20) if first << k <= length]
        return ends + (
            [length] if self.segments.marked(source) is not None and length not in ends else []
        )

    def sizes(self, numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        return np.array(self._sizes, np.int64)[numbers]

    def unit(self, number: int) -> UnitSlice:
        return UnitSlice(number, f"{self.source_of(number)}/{number}", self._sizes[number])

    def source_of(self, number: int) -> int:
        sources, _ = self.segments.places(np.array([number]))
        return int(sources[0])


@dataclass
class Work:
    """What came of an assignment."""

    outcome: Outcome
    made: dict[int, tuple[int, int]]  # of each unit that the shard holds: records, bytes


def work(units: Several, assignment: Assignment) -> Work:
    """A record of each unit in turn, until the shard is full."""
    left = {u.unit: u for u in assignment.units}
    made: dict[int, tuple[int, int]] = {}
    kinds = {number: units.kinds[units.source_of(number)] for number in left}
    size = 0
    while left:
        for number, unit in list(left.items()):
            kind = kinds[number]
            if made and size + kind.written > SHARD_SIZE:
                return Work(_outcome(made, tuple(left.values())), made)
            records, data = made.get(number, (0, 0))
            made[number] = records + 1, data + kind.written
            size, ordinal = size + kind.written, unit.ordinal + 1
            left[number] = replace(unit, ordinal=ordinal, offset=ordinal * kind.size)
            if ordinal == (unit.stop or kind.records):
                del left[number]
    return Work(_outcome(made, ()), made)


def _outcome(made: dict[int, tuple[int, int]], rest: tuple[UnitSlice, ...]) -> Outcome:
    records, data = (sum(each) for each in zip(*made.values(), strict=True))
    return Outcome(records, data, 20 * records, data, data, 0.0, rest)
