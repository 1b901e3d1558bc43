"""Pours units into a shard, several at a time, so that neighbours in the source do not stay neighbours.

Each of some *lanes* has one unit in hand, and when that is done the next one. The lane that has given the
shard the fewest bytes comes next: so all give the same, and what the shard holds follows from the
assignment and the records alone, never from what arrives first.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from cachecd.errors import UnitError
from cachecd.model import UnitSlice
from cachecd.sampler.draft import Draft
from cachecd.sampler.sources import Position

# A shard that is mixed is full when less than this part of it is left. To fill it to the last record
# would cut a unit between the results of one record, and have lanes fetch a little each.
_LEFT = 128
# Seconds after which heartbeats and fetches may run; small records would pay more for that than for being
# written.
_BREATH = 0.001


class Assigned(Protocol):
    """The units of an assignment, by their places in it."""

    def begin(self, place: int) -> AsyncGenerator[Position, None]:
        """`Source.pour` of a unit. Units are begun in their order."""

    def work(self, place: int) -> None:
        """A unit is worked on next."""

    def reached(self, place: int, position: Position) -> None:
        """It has come to this position."""

    def ended(self, place: int, error: UnitError | None) -> None:
        """It is done, or cannot be used."""


@dataclass(slots=True)
class _Lane:
    given: int = 0  # bytes of the shard
    place: int = -1
    records: AsyncGenerator[Position, None] | None = None
    position: Position = (0, 0)


async def mix(
    units: Sequence[UnitSlice],
    assigned: Assigned,
    draft: Draft,
    lanes: int,
    in_memory: Sequence[int] = (),
    most_open: float = float("inf"),
) -> tuple[UnitSlice, ...]:
    """Adds units to the draft until it is full; returns what is left of them, in their order.

    No more units are in hand at once than take `most_open` bytes `in_memory` together, but one at least.
    """
    held = in_memory or [unit.size for unit in units]
    todo = deque(range(len(units)))
    free = deque(_Lane() for _ in range(min(lanes, len(units))))
    busy: list[_Lane] = []
    in_hand, breath = 0, time.monotonic()
    try:
        while not draft.full:
            while todo and free and (not busy or in_hand + held[todo[0]] <= most_open):
                lane = free.popleft()
                lane.place = todo.popleft()
                unit = units[lane.place]
                lane.position = unit.ordinal, unit.offset
                lane.records = assigned.begin(lane.place)
                busy.append(lane)
                in_hand += held[lane.place]
            if not busy or (lanes > 1 and draft.room < draft.capacity // _LEFT):
                break
            lane = min(busy, key=lambda each: (each.given, each.place))
            if time.monotonic() - breath > _BREATH:
                await asyncio.sleep(0)
                breath = time.monotonic()
            if not await _step(lane, assigned, draft):
                busy.remove(lane)
                free.append(lane)
                in_hand -= held[lane.place]
    finally:
        for lane in busy:
            assert lane.records is not None
            await lane.records.aclose()
    begun = {
        lane.place: dataclasses.replace(
            units[lane.place], ordinal=lane.position[0], offset=lane.position[1]
        )
        for lane in busy
    }
    return tuple(begun.get(n, units[n]) for n in sorted([*begun, *todo]))


async def _step(lane: _Lane, assigned: Assigned, draft: Draft) -> bool:
    """One record or run of them; False if the unit has come to its end."""
    assert lane.records is not None
    before = draft.num_bytes
    assigned.work(lane.place)
    try:
        lane.position = await anext(lane.records)
    except StopAsyncIteration:
        assigned.ended(lane.place, None)
        return False
    except UnitError as error:
        assigned.ended(lane.place, error)
        return False
    finally:
        lane.given += draft.num_bytes - before
    assigned.reached(lane.place, lane.position)
    return True
