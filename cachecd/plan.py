"""Which units make shard N: one keyed permutation of the source, walked cyclically. Pure.

What a shard is to hold follows from the listing, the seed and the outcomes of the shards at least
WINDOW numbers before it, never from timing: up to WINDOW shards are made at once, finish in any
order, and still every one of them is the same on every run.

An outcome matters to later shards in two ways. What did not fit (the *remainder*) goes into the
next shards, first come, first served. And what a byte of the source became (the *ratio*) decides
how many units the next shards are given.

While the listing runs, the walk goes over the blocks that are listed. Where it comes to their end it
waits for the next one, rather than begin the next pass or close a shard early, so that how fast the
listing was does not show in any shard (docs/decisions/0008).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.backlog import NOTHING, Backlog
from cachecd.cycle import Cycle
from cachecd.model import Assignment, Outcome, SetAside, ShardId, UnitSlice
from cachecd.parts import Part, parts_made
from cachecd.strata import Strata
from cachecd.unitcount import UnitCount, Units
from cachecd.unittable import UnitTable

WINDOW = 16
# A unit that does not fit is fetched twice, so aim a little below the full shard.
_FILL = 0.97
# Bounds what one assignment takes in the catalog and on a pipe (about 15 kB and 400 kB), and how long
# planning it keeps the event loop (50 ms), however small the objects are.
MAX_UNITS = 4096
# Of a cache that holds nearly everything, much is walked over for each unit that is free.
_LONGEST_REACH = 1 << 16
# A unit is in one shard at a time: of a source of few units, so many shards can be made at once.
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Blocked:
    """The next shard depends on a shard that is being made, the listing, or an order still to be made."""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Every unit is held by live shards, being made, or set aside."""


class Plan:
    """One dataset's walk over its source.

    `assign` hands out shard numbers 1, 2, 3 ... and must be called in that order; every assigned
    number must come back through `finish`, in any order. `hold` and `release` say which units live
    shards hold. A unit that is held, assigned or waiting as a remainder is skipped by the walk, so
    its records are never in two shards of one pass.

    A shard is given at least `interleave` units, as far as there are as many: of those that are larger
    than their share it takes a part, and the rest is left over (docs/decisions/0011).
    """

    def __init__(
        self,
        dataset: str,
        generation: str,
        units: UnitTable,
        seed: int,
        shard_size: int,
        interleave: int = 1,
        strata: Strata | None = None,
    ) -> None:
        self.dataset = dataset
        self.generation = generation
        self.next_number = 1
        self.open: dict[int, Assignment] = {}
        self._units = units
        self._seed = seed
        self._target = int(shard_size * _FILL)
        self._interleave = interleave
        self.strata = strata
        self._cycle = Cycle(seed, strata)
        self._backlog = Backlog()
        self._count = UnitCount()

    # --- the listing

    def extend(self, complete: bool = True) -> None:
        """Takes up the blocks that the listing has gained; `complete`: there will be no more of them."""
        for end in self._units.ends:
            if end > self.num_units:
                self._add_block(end)
        self._cycle.more_to_come = not complete
        self._cycle.move_to(self._cycle.position)

    def make_do(self) -> None:
        """The listing does not get on: what it has found till now is walked, again and again."""
        if len(self._units) > self.num_units:
            self._add_block(len(self._units))
        self._cycle.more_to_come = False
        self._cycle.move_to(self._cycle.position)

    def _add_block(self, end: int) -> None:
        begin = self.num_units
        self._cycle.add_block(end)
        self._count.extend(end - begin)

    @property
    def num_units(self) -> int:
        return self._cycle.num_units

    @property
    def num_aside(self) -> int:
        return self._count.num_aside

    @property
    def num_gone(self) -> int:
        return self._count.num_gone

    @property
    def has_work(self) -> bool:
        """Whether any unit is neither held, nor being made, nor set aside."""
        return self._count.num_free > 0 or bool(self._backlog.slices())

    @property
    def left_over(self) -> list[UnitSlice]:
        """What did not fit into shards that are done or was lost with one, and is in no other yet."""
        return self._backlog.slices()

    @property
    def estimated_bytes(self) -> int:
        """What the whole source takes as shards, by the ratio seen so far."""
        return self._backlog.estimate_all(self._units.total_bytes, len(self._units))

    @property
    def missing_bytes(self) -> int:
        """About what the units take that are neither held, nor being made, nor set aside: those that
        were never begun count as units of mean size."""
        fresh = self.estimated_bytes * self._count.num_free // max(len(self._units), 1)
        return fresh + sum(map(self._backlog.estimate_of, self._backlog.slices()))

    @property
    def coverage(self) -> float:
        """Share of the source that the walk has handed out at least once, 0..1."""
        return 1.0 if self._cycle.passes else self._cycle.share

    @property
    def passes(self) -> tuple[int, float]:
        """How many times the walk has gone through the source, and the share of it this time."""
        return self._cycle.passes, self._cycle.share

    @property
    def num_waiting(self) -> int:
        """Units that are neither held, nor being made, nor set aside."""
        return self._count.num_free

    # --- assigning

    def assign(self) -> Assignment | Blocked | Exhausted:
        """The next shard's units: at least one, and about as many as fill it.

        What the unit table raises passes through, and the plan is then as it was.
        """
        number, backlog = self.next_number, self._backlog
        backlog.apply_up_to(number - WINDOW)
        while True:
            if number - backlog.applied > WINDOW:
                return Blocked()
            taken = self._take()
            if isinstance(taken, Blocked):
                return taken
            if taken:
                break
            # Nothing to hand out; what shards still being made leave over may change that, and is
            # taken up in their order so that the outcome is the same on every run.
            if backlog.applied == number - 1:
                self._cycle.passes = max(self._cycle.passes, 1)
                return Exhausted()
            if not backlog.finished(backlog.applied + 1):
                return Blocked()
            backlog.apply_up_to(backlog.applied + 1)
        assignment = Assignment(ShardId(self.dataset, number), self.generation, tuple(taken))
        self.open[number] = assignment
        self.next_number = number + 1
        return assignment

    def _take(self) -> list[UnitSlice] | Blocked:
        """Remainders first, then fresh units from the walk, until the target is reached; all are held
        then. Blocked, and nothing changed, if what would come next is not listed yet."""
        taken: list[UnitSlice] = []
        filled, next_up, share = 0, self._backlog.next_up, self._share()
        numbers: set[int] = set()
        for unit in next_up:
            cost = min(self._backlog.estimate_of(unit), share)
            if taken and (filled + cost > self._target or len(taken) == MAX_UNITS):
                break
            if unit.unit in numbers:  # a shard holds one stretch of a unit
                break
            taken.append(unit)
            numbers.add(unit.unit)
            filled += cost
        left_over, fresh, position = len(taken), np.zeros(0, np.uint64), self._cycle.position
        if left_over == len(next_up):
            walked = self._next_fresh(filled, left_over, share)
            if isinstance(walked, Blocked):
                return walked
            fresh, position = walked
            taken += [self._units.unit(number) for number in fresh.tolist()]
        for _ in range(left_over):
            next_up.popleft()
        self._count.hold(fresh)
        self._cycle.move_to(position)
        return taken

    def _share(self) -> int:
        """What a shard takes at most of one unit, so that it mixes as many as it shall."""
        if not self._cycle.blocks or self._interleave == 1 or self._units.unit(0).seems_packed:
            return self._target
        # Not the number of all units: a listing that runs must not show.
        most = self._cycle.blocks[0] // _AT_ONCE
        return self._target // max(min(self._interleave, most), 1)

    def _next_fresh(
        self, filled: int, count: int, share: int
    ) -> tuple[NDArray[np.uint64], int] | Blocked:
        """The free units that come next, as many as fit with the `count` that are `filled` if no more
        than `share` is taken of any, and the position after the last of them; the first fits into an
        empty shard whatever its size."""
        chosen: list[NDArray[np.uint64]] = []
        cycle = self._cycle
        after = position = cycle.position
        left = cycle.left if self._count.num_free or cycle.more_to_come else 0
        while count < MAX_UNITS and (filled < self._target or not count):
            if not left:
                if cycle.more_to_come:
                    return Blocked()
                break
            numbers = cycle.ahead(position, min(self._reach(filled), left))
            if numbers is None:
                return Blocked()
            places = np.flatnonzero(self._count.free(numbers))
            sizes = self._units.sizes(numbers[places])
            costs = np.cumsum(np.minimum(self._backlog.estimate(sizes), share))
            fits = int(np.searchsorted(costs, self._target - filled, side="right"))
            fits = min(max(fits, 0 if count else 1), MAX_UNITS - count, len(places))
            if fits:
                chosen.append(numbers[places[:fits]])
                after = position + int(places[fits - 1]) + 1
                filled += int(costs[fits - 1])
                count += fits
            if fits < len(places):
                break
            position += len(numbers)
            left -= len(numbers)
        return np.concatenate([np.zeros(0, np.uint64), *chosen]), after

    def _reach(self, filled: int) -> int:
        """How far to look ahead at a time: no choice depends on it, only how soon it is made."""
        mean = max(self.estimated_bytes // max(len(self._units), 1), 1)
        wanted = min((self._target - filled) // mean + 16, MAX_UNITS)
        return min(wanted * max(self.num_units // max(self._count.num_free, 1), 1), _LONGEST_REACH)

    # --- outcomes

    def finish(self, number: int, outcome: Outcome, held: Sequence[int]) -> tuple[Part, ...]:
        """Shard `number` is done and holds records of the units `held` (none if it is empty); returns
        the parts of those that it does not hold whole."""
        assigned = self.open.pop(number).units
        self.hold(held)
        self.hold([u.unit for u in outcome.remainder])  # reserved until its turn comes
        self.release([u.unit for u in assigned])
        self.set_aside(s.unit for s in outcome.set_aside)
        size_in = sum(max(u.size - u.offset, 0) for u in assigned)
        size_in -= sum(max(u.size - u.offset, 0) for u in outcome.remainder)
        aside = {s.unit for s in outcome.set_aside}
        size_in -= sum(u.size for u in assigned if u.unit in aside)
        noted = replace(outcome, records=0, allocated=0, seconds=0.0, set_aside=())
        if any(u.stop for u in assigned):  # it says nothing of the ratio: who knows how long it is
            noted = replace(NOTHING, remainder=outcome.remainder)
        else:
            noted = replace(noted, fetched_bytes=max(size_in, 0))
        self._backlog.finish(number, noted)
        return parts_made(assigned, outcome, set(held))

    def without(self, number: int, aside: SetAside) -> Assignment:
        """Takes a unit on which workers die out of an open assignment, and sets it aside."""
        old = self.open[number]
        self.set_aside([aside.unit])
        self.release([u.unit for u in old.units if u.unit == aside.unit])
        rest = tuple(u for u in old.units if u.unit != aside.unit)
        self.open[number] = Assignment(old.shard, old.generation, rest)
        return self.open[number]

    def set_aside(self, units: Iterable[int]) -> None:
        """These units are not handed out again."""
        self._count.set_aside(units)

    def take_back(self, units: Iterable[int]) -> None:
        """These units, set aside before, are handed out again when the walk comes by."""
        self._count.take_back(units)

    def gone(self, units: Units) -> None:
        """These units are not in the source any more: they are not handed out until they are back."""
        self._count.gone(units)

    def back(self, units: Units) -> None:
        """These units, gone before, are in the source again."""
        self._count.back(units)

    def aside(self, units: Units) -> NDArray[np.bool_]:
        """Which of these were set aside."""
        return self._count.aside(units)

    def hold(self, units: Units) -> None:
        """A live shard holds records of these units, or several do: each names a unit once."""
        self._count.hold(units)

    def release(self, units: Units) -> None:
        """A shard that held records of these units is gone."""
        self._count.release(units)

    def give_back(self, units: Units, parts: Iterable[UnitSlice]) -> None:
        """A shard is lost that held these units, of some of them only `parts`: what no other has comes
        again at once. A part of a unit of which others hold the rest comes again as that part."""
        self.release(units)
        for part in parts:
            number = np.array([part.unit])
            if self._count.held(number)[0] and not self._count.aside(number)[0]:
                self.resume([part])

    def partly_held(self, units: Sequence[int]) -> list[int]:
        """Those of these that somebody holds something of."""
        numbers = np.array(units, np.int64)
        held: list[int] = numbers[self._count.held(numbers)].tolist()
        return held

    # --- across restarts

    def to_json(self) -> dict[str, Any]:
        """All of the plan but its open assignments, and which units live shards hold."""
        return {
            "version": 1,
            "seed": self._seed,
            "next_number": self.next_number,
            "blocks": self._cycle.blocks,
            "passes": self._cycle.passes,
            "position": self._cycle.position,
            **self._backlog.to_json(),
        }

    def restore(self, saved: dict[str, Any], open_assignments: Iterable[Assignment]) -> None:
        """Continues a saved plan; the caller then tells what is held and set aside."""
        for end in saved["blocks"]:
            self._add_block(end)
        self.next_number = saved["next_number"]
        self._cycle.passes, self._cycle.position = saved["passes"], saved["position"]
        self._backlog.restore(saved, self._units.unit)
        self.hold([u.unit for u in self.left_over])
        for assignment in open_assignments:
            number = assignment.shard.number
            if number <= self._backlog.applied or self._backlog.finished(number):
                continue  # it was finished, but its row outlived a failed write
            self.open[assignment.shard.number] = assignment
            self.hold([u.unit for u in assignment.units])

    def resume(self, parts: Iterable[UnitSlice]) -> None:
        """What is left of units that live shards hold something of, and nobody else has in hand."""
        for part in parts:
            self._backlog.append([part])
            self._count.hold([part.unit])

    def skip_to(self, number: int, cursor: int) -> None:
        """Goes on after shard `number` where no plan was saved: its sidecar has the cursor."""
        self.next_number = number + 1
        self._backlog.skip_to(number)
        self._cycle.skip_to(cursor)

    def overtake(self, number: int, parts: Iterable[UnitSlice] = ()) -> None:
        """Number `number` is taken by a shard that was made after this plan was last saved, and that
        left `parts` of units to do. Numbers before it that are not known to be taken stay unused."""
        for unused in range(self.next_number, number):
            self._backlog.finish(unused, NOTHING)
        mine = {(u.unit, u.ordinal) for u in self.left_over}
        rest = tuple(u for u in parts if (u.unit, u.ordinal) not in mine)
        self._backlog.finish(number, replace(NOTHING, remainder=rest))
        self.hold([u.unit for u in rest])
        self.next_number = number + 1

    def drop(self, begun: Container[tuple[int, int]]) -> None:
        """Of what is left to do, these (unit, ordinal) have been begun by shards that overtook."""
        self.release([u.unit for u in self._backlog.drop(begun)])

    @property
    def cursor(self) -> int:
        """The walk's position, counted over all passes; what sidecars carry."""
        return self._cycle.cursor
