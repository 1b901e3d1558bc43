"""Units whose size nobody knows: listed with one size for all, whatever they turn out to take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from cachecd.model import Assignment, Outcome
from cachecd.plan import WINDOW, Plan
from cachecd.sampler.reader import UNSIZED
from tests.world import SHARD_SIZE, Units

RECORD = 500  # bytes of each record


def make(assignment: Assignment, records: Callable[[int], int]) -> tuple[Outcome, Counter[int]]:
    """What a worker makes of it, and how many records of which unit."""
    room = SHARD_SIZE // RECORD
    made: Counter[int] = Counter()
    for place, unit in enumerate(assignment.units):
        left = records(unit.unit) - unit.ordinal
        made[unit.unit] = min(left, room)
        room -= made[unit.unit]
        if left > made[unit.unit] or not room:
            rest = [replace(unit, ordinal=unit.ordinal + made[unit.unit])] * (
                left > made[unit.unit]
            )
            rest += assignment.units[place + 1 :]
            break
    else:
        rest = []
    size = made.total() * RECORD
    return Outcome(made.total(), size, 0, size, size, 0.0, tuple(rest)), +made


@pytest.mark.parametrize(
    ("units", "records", "least"),
    [
        (4000, lambda unit: 2, 0.85),  # a thousandth of what they are listed with
        (2000, lambda unit: 1 + unit % 60, 0.8),
        (60, lambda unit: 700, 0.8),  # six shards each
        # What is left of a large one is taken for as much as the whole.
        (300, lambda unit: 1000 if unit % 30 == 0 else 3, 0.7),
    ],
    ids=["tiny", "mixed", "large", "a few large ones"],
)
def test_shards_are_filled_by_what_units_turned_out_to_take(units, records, least):
    plan = Plan("train", "g", Units([UNSIZED] * units), 7, SHARD_SIZE)
    plan.extend()
    found: Counter[int] = Counter()
    filled = []
    while isinstance(assignment := plan.assign(), Assignment):
        outcome, made = make(assignment, records)
        filled.append(outcome.data_bytes / SHARD_SIZE)
        found += made
        plan.finish(assignment.shard.number, outcome, sorted(made))
    assert found == {unit: records(unit) for unit in range(units)}
    later = filled[2 * WINDOW : -2]
    assert sum(later) / len(later) > least
