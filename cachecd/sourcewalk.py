"""The plan's walk over its source: which units the next shard is given, and how far the walk is. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from cachecd.cycle import Cycle
from cachecd.model import MAX_UNITS, UnitSlice
from cachecd.ratio import Ratio
from cachecd.unitcount import UnitCount, Units
from cachecd.unittable import UnitTable

# Of a cache that holds nearly everything, much is walked over for each unit that is free.
_LONGEST_REACH = 1 << 16
# Units that came back to the source and were in no shard yet; they are saved with each plan.
_MOST_MISSED = 256
# A unit is in one shard at a time: of a source of few units, so many shards can be made at once.
_AT_ONCE = 4


class UnlistedError(Exception):
    """The next unit is not listed yet."""


class _Candidate(NamedTuple):
    """What comes next: a `part` that was left over, or else the whole unit `number`. It takes about `cost`
    bytes of shards, and behind it the walk is at `position`."""

    part: UnitSlice | None
    number: int
    cost: int
    position: int


class SourceWalk:
    """`next_up` are the slices that come before what the walk comes to, first come, first served."""

    def __init__(self, units: UnitTable, seed: int, target: int, interleave: int) -> None:
        """`target`: bytes that a shard is to have; `interleave`: how many units it mixes."""
        self.next_up: deque[UnitSlice] = deque()
        self.count = UnitCount()
        self.ratio = Ratio()
        self.cycle = Cycle(seed)
        self._units = units
        self._target = target
        self._interleave = interleave
        self._made_do: int | None = None  # with so many units

    # --- the listing

    def extend(self, complete: bool) -> None:
        """Takes up the blocks that the listing has gained; `complete`: there will be no more of them."""
        for end in self._units.ends:
            if end > self.cycle.num_units:
                self._add_block(end)
        if complete or len(self._units) != self._made_do:
            self._made_do = None
            self.cycle.more_to_come = not complete
            self._ends()

    def make_do(self) -> None:
        """The listing does not get on: what it has found till now is walked, again and again."""
        if not self.cycle.more_to_come:
            return
        if len(self._units) > self.cycle.num_units:
            self._add_block(len(self._units))
        self._made_do = len(self._units)
        self.cycle.more_to_come = False
        self._ends()

    def _ends(self) -> None:
        """Whether more is to come may have changed."""
        self.cycle.catch_up()
        self.cycle.move_to(self.cycle.position)

    def _add_block(self, end: int) -> None:
        begin = self.cycle.num_units
        self.cycle.add_block(end)
        self.count.extend(end - begin)

    # --- figures

    @property
    def estimated_bytes(self) -> int:
        """What all of it takes as shards."""
        return self.ratio.estimate_all(self._units.num_bytes, len(self._units))

    @property
    def fresh_bytes(self) -> int:
        """About what the free units take."""
        return self.estimated_bytes * self.count.num_free // max(len(self._units), 1)

    def recount(self, coming: Units) -> None:
        """After a restart, which units were in a shard; but for these, which are in hand."""
        self.count.recount(self.cycle.walked_over(), coming)

    # --- assigning

    def take(self) -> tuple[UnitSlice, ...]:
        """The units of the next shard, about as many as fill it, which from now on are spoken for; empty if
        none is at hand. After UnlistedError, and what the unit table raises, the walk is as it was."""
        taken: dict[
            int, _Candidate
        ] = {}  # by the unit's number: a shard holds one stretch of a unit
        filled, most = 0, self._share()
        for found in self._coming():
            cost = min(found.cost, most)
            if found.number in taken or (taken and filled + cost > self._target):
                break
            taken[found.number] = found
            filled += cost
            if filled >= self._target or len(taken) == MAX_UNITS:
                break
        units = tuple(found.part or self._units.unit(found.number) for found in taken.values())
        fresh = [found.number for found in taken.values() if found.part is None]
        for _ in range(len(taken) - len(fresh)):
            self.next_up.popleft()
        self.count.hold(fresh)
        if fresh:
            self.cycle.move_to(taken[fresh[-1]].position)
        return units

    def _coming(self) -> Iterator[_Candidate]:
        for part in self.next_up:
            yield _Candidate(part, part.unit, self.ratio.estimate_of(part), 0)
        yield from self._fresh()

    def _share(self) -> int:
        """What a shard takes at most of one unit, so that it mixes as many as it shall."""
        blocks = self.cycle.blocks
        if not blocks or not blocks[0] or self._interleave == 1 or self._units.unit(0).seems_packed:
            return self._target
        # Not the number of all units: a listing that runs must not show.
        most = blocks[0] // _AT_ONCE
        return self._target // max(min(self._interleave, most), 1)

    def _fresh(self) -> Iterator[_Candidate]:
        """The free units that come next. UnlistedError at the end of what is listed, where more is to
        come."""
        cycle = self.cycle
        position = cycle.position
        left = cycle.left if self.count.num_free or cycle.more_to_come else 0
        while left:
            numbers = cycle.ahead(position, min(self._reach(), left))
            places = np.flatnonzero(self.count.free(numbers))
            costs = self.ratio.estimate(self._units.sizes(numbers[places]))
            behind = places + (position + 1)
            for found in zip(
                numbers[places].tolist(), costs.tolist(), behind.tolist(), strict=True
            ):
                yield _Candidate(None, *found)
            position += len(numbers)
            left -= len(numbers)
        if cycle.more_to_come:
            raise UnlistedError

    def _reach(self) -> int:
        """How far to look ahead at a time: no choice depends on it, only how soon it is made."""
        mean = max(self.estimated_bytes // max(len(self._units), 1), 1)
        wanted = min(self._target // mean + 16, MAX_UNITS)
        free = max(self.count.num_free, 1)
        return min(wanted * max(self.cycle.num_units // free, 1), _LONGEST_REACH)

    # --- across restarts

    def drop(self, begun: Container[tuple[int, int]]) -> list[UnitSlice]:
        """Forgets the slices that begin with these (unit, ordinal), and returns them."""
        done = [u for u in self.next_up if (u.unit, u.ordinal) in begun]
        self.next_up = deque(u for u in self.next_up if u not in done)
        return done

    def to_json(self) -> dict[str, Any]:
        """All but what is left over, and which units are spoken for."""
        told = {
            "blocks": self.cycle.blocks,
            "passes": self.cycle.passes,
            "position": self.cycle.position,
            **self._walked(),
            "bytes_in": self.ratio.bytes_in,
            "bytes_out": self.ratio.bytes_out,
        }
        return told | ({"target": self.cycle.target} if self.cycle.target else {})

    def _walked(self) -> dict[str, Any]:
        """What `recount` goes by. Of more than can be saved here, only what is on disk then counts."""
        missed = self.count.missed
        if len(missed) > _MOST_MISSED:
            return {}
        return {"walked": self.cycle.walked, "missed": sorted(missed)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continues from what `to_json` gave."""
        for end in saved["blocks"]:
            self._add_block(end)
        self.cycle.passes, self.cycle.position = saved["passes"], saved["position"]
        self.cycle.walked = [*saved.get("walked", self.cycle.walked)]
        self.count.missed.update(saved.get("missed", ()))
        self.cycle.target = saved.get("target", 0)
        self.ratio.add(saved["bytes_in"], saved["bytes_out"])
