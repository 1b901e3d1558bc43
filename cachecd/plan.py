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
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.backlog import Backlog, Effect, effect_of
from cachecd.model import Assignment, Outcome, SetAside, ShardId, UnitSlice
from cachecd.parts import Part, part_of, parts_made, slices_of
from cachecd.sourcewalk import SourceWalk, UnitTable, UnlistedError
from cachecd.unitcount import Units

WINDOW = 16
# A unit that does not fit is fetched twice, so aim a little below the full shard.
_FILL = 0.97


@dataclass(frozen=True, slots=True)
class Blocked:
    """The next shard depends on a shard that is being made, or on the listing."""


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
    ) -> None:
        self.dataset = dataset
        self.generation = generation
        self.next_number = 1
        self.open: dict[int, Assignment] = {}
        self.target = int(shard_size * _FILL)
        """Bytes that a shard is to be filled with."""
        self.walk = SourceWalk(units, seed, self.target, interleave)
        self._count, self._cycle = self.walk.count, self.walk.cycle
        self._units = units
        self._seed = seed
        self._backlog = Backlog()

    # --- the listing

    def extend(self, complete: bool = True) -> None:
        """Takes up the blocks that the listing has gained; `complete`: there will be no more of them."""
        self.walk.extend(complete)

    def make_do(self) -> None:
        """The listing does not get on: what it has found till now is walked, again and again."""
        self.walk.make_do()

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
        return self._count.num_free > 0 or bool(self.walk.next_up) or any(self._backlog.slices())

    @property
    def left_over(self) -> list[UnitSlice]:
        """What did not fit into shards that are done or was lost with one, and is in no other yet."""
        return [*self.walk.next_up, *self._backlog.slices()]

    @property
    def estimated_bytes(self) -> int:
        """What the whole source takes as shards, by the ratio seen so far."""
        return self.walk.estimated_bytes

    @property
    def missing_bytes(self) -> int:
        """About what the units take that are neither held, nor being made, nor set aside: those that
        were never begun count as units of mean size."""
        return self.walk.fresh_bytes + sum(map(self.walk.ratio.estimate_of, self.left_over))

    @property
    def coverage(self) -> float:
        """Share of the source that was in a shard at least once, 0..1; of what is not set aside or gone."""
        if not self._count.num_here:  # nothing that could be covered
            return float(bool(self._cycle.passes))
        return self._count.num_covered / self._count.num_here

    def recount(self) -> None:
        """After a restart, when all is known that is held, set aside or gone: what `coverage` goes by."""
        begun = (*(u for a in self.open.values() for u in a.units), *self.left_over)
        self.walk.recount([u.unit for u in begun if not u.ordinal])

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
        self._apply_up_to(number - WINDOW)
        while True:
            if number - backlog.applied > WINDOW:
                return Blocked()
            try:
                units = self.walk.take()
            except UnlistedError:
                return Blocked()
            if units:
                break
            # Nothing to hand out; what shards still being made leave over may change that, and is
            # taken up in their order so that the outcome is the same on every run.
            if backlog.applied == number - 1:
                self._cycle.passes = max(self._cycle.passes, 1)
                return Exhausted()
            if not backlog.knows_next:
                return Blocked()
            self._apply_up_to(backlog.applied + 1)
        assignment = Assignment(ShardId(self.dataset, number), self.generation, units)
        self.open[number] = assignment
        self.next_number = number + 1
        return assignment

    # --- outcomes

    def finish(self, number: int, outcome: Outcome, held: Sequence[int]) -> tuple[Part, ...]:
        """Shard `number` is done and holds records of the units `held` (none if it is empty); returns the
        parts of those that it does not hold whole."""
        assigned = self.open.pop(number).units
        self.hold(held)
        self._count.cover(held)
        self.hold([u.unit for u in outcome.remainder])  # reserved until its turn comes
        self.release([u.unit for u in assigned])
        self.set_aside(s.unit for s in outcome.set_aside)
        self._backlog.finish(number, effect_of(assigned, outcome))
        return parts_made(assigned, outcome, set(held))

    def _apply_up_to(self, number: int) -> None:
        for effect in self._backlog.take_up_to(number):
            self.walk.next_up += effect.remainder
            self.walk.ratio.add(effect.bytes_in, effect.bytes_out)

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

    def give_back(self, units: Units, parts: Sequence[UnitSlice]) -> None:
        """A shard is lost that held these units, of some of them only `parts`: what no other has comes
        again at once. A part of a unit of which others hold the rest comes again as that part; those of
        units that are set aside do not."""
        self.release(units)
        numbers = [part.unit for part in parts]
        aside, held = self._count.aside(numbers), self._count.held(numbers)
        self.resume(compress(parts, held & ~aside))

    def several_hold(self) -> list[int]:
        """The units that are held more than once: cut ones, and those that should not be."""
        return [*map(int, self._count.several)]

    def held_twice(self, units: Sequence[int]) -> list[int]:
        """Those of these that are held more than once."""
        return [*compress(units, self._count.shared(units))]

    def partly_held(self, units: Sequence[int]) -> list[int]:
        """Those of these that somebody holds something of."""
        return [*compress(units, self._count.held(units))]

    # --- across restarts

    def to_json(self) -> dict[str, Any]:
        """All of the plan but its open assignments, and which units live shards hold."""
        return {
            "seed": self._seed,
            "next_number": self.next_number,
            "remainder": [part_of(u) for u in self.walk.next_up],
            **self._backlog.to_json(),
            **self.walk.to_json(),
        }

    def restore(self, saved: dict[str, Any], open_assignments: Iterable[Assignment]) -> None:
        """Continues a saved plan; the caller then tells what is held and set aside."""
        self.walk.restore(saved)
        self.next_number = saved["next_number"]
        self.walk.next_up += slices_of(saved["remainder"], self._units.unit)
        self._backlog.restore(saved, self._units.unit)
        self.hold([u.unit for u in self.left_over])
        for assignment in open_assignments:
            number = assignment.shard.number
            if number <= self._backlog.applied or number in self._backlog.waiting:
                continue  # it was finished, but its row outlived a failed write
            self.open[assignment.shard.number] = assignment
            self.hold([u.unit for u in assignment.units])

    def resume(self, parts: Iterable[UnitSlice]) -> None:
        """What is left of units that live shards hold something of, and nobody else has in hand."""
        for part in parts:
            self.walk.next_up.append(part)
            self.hold([part.unit])

    def skip_to(self, number: int, cursor: int) -> None:
        """Goes on after shard `number` where no plan was saved: its sidecar has the cursor."""
        self.next_number = number + 1
        self._backlog.applied = number
        self._cycle.skip_to(cursor)

    def overtake(self, number: int, parts: Iterable[UnitSlice] = ()) -> None:
        """Number `number` is taken by a shard that was made after this plan was last saved, and that
        left `parts` of units to do. Numbers before it that are not known to be taken stay unused."""
        self._backlog.skip(self.next_number, number)
        mine = {(u.unit, u.ordinal) for u in self.left_over}
        rest = tuple(u for u in parts if (u.unit, u.ordinal) not in mine)
        self._backlog.finish(number, Effect(rest))
        self.hold([u.unit for u in rest])
        self.next_number = number + 1
        self._apply_up_to(number - WINDOW)

    def drop(self, begun: Container[tuple[int, int]]) -> None:
        """Forgets what is left to do that begins with these (unit, ordinal)."""
        dropped = self._backlog.drop(begun) + self.walk.drop(begun)
        self.release([u.unit for u in dropped])

    def let_go(self) -> list[UnitSlice]:
        """Forgets all that is left over, and all open assignments, whose numbers stay unused; returns what
        they had of units."""
        in_hand = self.left_over
        self.drop({(u.unit, u.ordinal) for u in in_hand})
        for number, assignment in self.open.items():
            self._backlog.skip(number, number + 1)
            self.release([u.unit for u in assignment.units])
            in_hand += assignment.units
        self.open.clear()
        return in_hand

    @property
    def cursor(self) -> int:
        """The walk's position, counted over all passes; what sidecars carry."""
        return self._cycle.cursor
