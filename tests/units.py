"""Sources in memory: their listings, and what samplers make of an assignment when all goes well."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cachecd.ledger import BLOCK, footprint
from cachecd.marks import Marks
from cachecd.model import Assignment, Outcome, UnitSlice

Records = set[tuple[int, int]]  # unit and ordinal
SHARD_SIZE = 64 << 10
FOOTPRINT = footprint(SHARD_SIZE)
RECORDS_PER_UNIT = 4


class Units:
    id = "i"

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = np.array(sizes, np.int64)
        self.complete = True
        self.gone = Marks()

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def num_bytes(self) -> int:
        return int(self._sizes[: len(self)].sum())

    @property
    def ends(self) -> list[int]:
        return [len(self)]

    def sizes(self, numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        return self._sizes[numbers]

    def unit(self, number: int) -> UnitSlice:
        return UnitSlice(number, f"key-{number}", int(self._sizes[number]))

    def append(self, sizes: list[int]) -> None:
        self._sizes = np.append(self._sizes, np.array(sizes, np.int64))


def records_of(units: tuple[UnitSlice, ...]) -> Records:
    return {(u.unit, o) for u in units for o in range(u.ordinal, u.stop or RECORDS_PER_UNIT)}


def mixed(assignment: Assignment) -> Outcome:
    """A record of each unit in turn, until the shard is full."""
    left = {u.unit: u for u in assignment.units}
    size = records = 0
    while left:
        for unit in list(left.values()):
            record = unit.size // RECORDS_PER_UNIT
            if records and size + record > SHARD_SIZE:
                allocated = -(-size // BLOCK) * BLOCK + BLOCK
                return Outcome(records, size, 0, allocated, size, 1.0, tuple(left.values()))
            size, records, ordinal = size + record, records + 1, unit.ordinal + 1
            if ordinal == (unit.stop or RECORDS_PER_UNIT):
                del left[unit.unit]
            else:
                left[unit.unit] = replace(unit, ordinal=ordinal, offset=ordinal * record)
    return full(assignment)


def full(assignment: Assignment) -> Outcome:
    """Everything of the assignment fits, one byte for one."""
    size = sum(
        u.size * ((u.stop or RECORDS_PER_UNIT) - u.ordinal) // RECORDS_PER_UNIT
        for u in assignment.units
    )
    size = min(size, SHARD_SIZE)
    records = len(records_of(assignment.units))
    return Outcome(records, size, 0, -(-size // BLOCK) * BLOCK + BLOCK, size, 1.0)
