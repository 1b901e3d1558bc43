"""Which units make shard N: one keyed permutation of the source, walked cyclically. Pure.

What a shard is to hold follows from the listing, the seed and the outcomes of the shards at least
WINDOW numbers before it, never from timing: up to WINDOW shards are made at once, finish in any
order, and still every one of them is the same on every run.

An outcome matters to later shards in two ways. What did not fit (the *remainder*) goes into the
next shards, first come, first served. And what a byte of the source became (the *ratio*) decides
how many units the next shards are given.

Of several sources each has a walk of its own, and a shard is given units of all of them, such that their
records follow the weights (docs/decisions/0013).

While the listing runs, the walk goes over the blocks that are listed. Where it comes to their end it
waits for the next one, rather than begin the next pass or close a shard early, so that how fast the
listing was does not show in any shard (docs/decisions/0008).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.backlog import Backlog, Effect, Made, yields_of
from cachecd.filling import counted, fill
from cachecd.model import Assignment, Outcome, SetAside, ShardId, UnitSlice
from cachecd.parts import Part, part_of, parts_made, slices_of
from cachecd.shares import Shares
from cachecd.sourcewalk import SourceRules, SourceWalk, UnlistedError
from cachecd.unitcount import Units
from cachecd.unittable import UnitTable

WINDOW = 16
# A unit that does not fit is fetched twice, so aim a little below the full shard.
_FILL = 0.97
_ONE = (SourceRules(),)


@dataclass(frozen=True, slots=True)
class Blocked:
    """The next shard depends on a shard that is being made, or on the listing."""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Every unit is held by live shards, being made, or set aside."""


class Plan:
    """One dataset's walk over its source, or its sources.

    `assign` hands out shard numbers 1, 2, 3 ... and must be called in that order; every assigned
    number must come back through `finish`, in any order. `hold` and `release` say which units live
    shards hold. A unit that is held, assigned or waiting as a remainder is skipped by the walk, so
    its records are never in two shards of one pass.

    A shard is given at least as many units of a source as it mixes, as far as there are as many:
    of those that are larger than their share it takes a part, and the rest is left over
    (docs/decisions/0011).
    """

    def __init__(
        self,
        dataset: str,
        generation: str,
        units: UnitTable,
        seed: int,
        shard_size: int,
        sources: Sequence[SourceRules] = _ONE,
    ) -> None:
        self.dataset = dataset
        self.generation = generation
        self.next_number = 1
        self.open: dict[int, Assignment] = {}
        self._units = units
        self._seed = seed
        self._target = int(shard_size * _FILL)
        self.walks = [
            SourceWalk(place, units, seed, self._target, rules)
            for place, rules in enumerate(sources)
        ]
        self._shares = Shares([rules.weight for rules in sources])
        self._backlog = Backlog()

    @property
    def target(self) -> int:
        """Bytes that a shard is to be filled with."""
        return self._target

    def reweigh(self, weights: Sequence[float]) -> None:
        """From the next shard on the records follow these weights."""
        self._shares.reweigh(weights)

    # --- the listing

    def extend(self, complete: bool = True) -> None:
        """Takes up the blocks that the listing has gained; `complete`: there will be no more of them."""
        for place, walk in enumerate(self.walks):
            walk.extend(complete or self._units.segments.marked(place) is not None)

    def make_do(self, source: int = 0) -> None:
        """The listing of this source does not get on: what it has found till now is walked, again and
        again, and if that is nothing, the others alone."""
        self.walks[source].make_do()

    @property
    def num_units(self) -> int:
        return sum(walk.cycle.num_units for walk in self.walks)

    @property
    def num_aside(self) -> int:
        return sum(walk.count.num_aside for walk in self.walks)

    @property
    def num_gone(self) -> int:
        return sum(walk.count.num_gone for walk in self.walks)

    @property
    def has_work(self) -> bool:
        """Whether any unit is neither held, nor being made, nor set aside."""
        return any(walk.has_work for walk in self.walks) or any(self._backlog.slices())

    @property
    def left_over(self) -> list[UnitSlice]:
        """What did not fit into shards that are done or was lost with one, and is in no other yet."""
        return [u for walk in self.walks for u in walk.next_up] + [*self._backlog.slices()]

    @property
    def estimated_bytes(self) -> int:
        """What the whole source takes as shards, by the ratio seen so far."""
        return sum(walk.estimated_bytes for walk in self.walks)

    @property
    def missing_bytes(self) -> int:
        """About what the units take that are neither held, nor being made, nor set aside: those that
        were never begun count as units of mean size."""
        fresh = sum(walk.fresh_bytes for walk in self.walks)
        rest = self.left_over
        source = self._sources_of([u.unit for u in rest])
        return fresh + sum(self.walks[source[u.unit]].ratio.estimate_of(u) for u in rest)

    @property
    def coverage(self) -> float:
        """Share of the source that was in a shard at least once, 0..1; of what is not set aside or gone."""
        every = sum(walk.count.num_here for walk in self.walks)
        if not every:  # nothing that could be covered
            return float(all(walk.cycle.passes for walk in self.walks))
        return sum(walk.count.num_covered for walk in self.walks) / every

    def recount(self) -> None:
        """After a restart, when all is known that is held, set aside or gone: what `coverage` goes by."""
        begun = (*(u for a in self.open.values() for u in a.units), *self.left_over)
        coming = [u.unit for u in begun if not u.ordinal]
        by_walk = {id(walk): ordinals for walk, ordinals in self._each(coming)}
        for walk in self.walks:
            walk.recount(by_walk.get(id(walk), ()))

    @property
    def passes(self) -> tuple[int, float]:
        """How many times the walk has gone through the source, and the share of it this time; of several,
        of the one that is the least far."""
        return min((walk.cycle.passes, walk.cycle.share) for walk in self.walks)

    @property
    def num_waiting(self) -> int:
        """Units that are neither held, nor being made, nor set aside."""
        return sum(walk.count.num_free for walk in self.walks)

    @property
    def records(self) -> list[int]:
        """Of several sources, how many each has given, as far as outcomes are known."""
        waiting = map(self._backlog.records_of, range(len(self.walks)))
        return [walk.ratio.records + more for walk, more in zip(self.walks, waiting, strict=True)]

    # --- assigning

    def assign(self, without: Container[int] = ()) -> Assignment | Blocked | Exhausted:
        """The next shard's units: at least one, and about as many as fill it; none of the sources
        `without`.

        What the unit table raises passes through, and the plan is then as it was.
        """
        number, backlog = self.next_number, self._backlog
        self._apply_up_to(number - WINDOW)
        away = {place for place in range(len(self.walks)) if place in without}
        while True:
            if number - backlog.applied > WINDOW:
                return Blocked()
            try:
                filling = fill(self.walks, self._shares, self._target, away)
            except UnlistedError:
                return Blocked()
            if filling is not None and filling.taken:
                break
            # Nothing to hand out; what shards still being made leave over may change that, and is
            # taken up in their order so that the outcome is the same on every run.
            if backlog.applied == number - 1:
                if away:
                    return Blocked()
                for walk in self.walks:
                    walk.cycle.passes = max(walk.cycle.passes, 1)
                return Exhausted()
            if not backlog.knows_next:
                return Blocked()
            self._apply_up_to(backlog.applied + 1)
        numbers = filling.numbers()
        units = tuple(self._units.unit(n) if rest is None else rest for rest, n in numbers)
        filling.close()
        if len(self.walks) > 1:
            self._shares.plan(number, filling.records, filling.cut, filling.without)
        assignment = Assignment(ShardId(self.dataset, number), self.generation, units)
        self.open[number] = assignment
        self.next_number = number + 1
        return assignment

    # --- outcomes

    def finish(
        self, number: int, outcome: Outcome, held: Sequence[int], made: Made | None = None
    ) -> tuple[Part, ...]:
        """Shard `number` is done and holds records of the units `held` (none if it is empty), of several
        sources as many of each as it has `made`; returns the parts of those that it does not hold whole."""
        assigned = self.open.pop(number).units
        self.hold(held)
        for walk, ordinals in self._each(held):
            walk.count.cover(ordinals)
        self.hold([u.unit for u in outcome.remainder])  # reserved until its turn comes
        self.release([u.unit for u in assigned])
        self.set_aside(s.unit for s in outcome.set_aside)
        places = self._sources_of([*(u.unit for u in assigned), *(made or {})])
        yields = yields_of(assigned, outcome, made or {}, places, len(self.walks))
        self._backlog.finish(number, Effect(outcome.remainder, yields))
        return parts_made(assigned, outcome, set(held))

    def sources_in(self, number: int) -> set[int]:
        """Of which an open assignment has units."""
        return set(self._sources_of([unit.unit for unit in self.open[number].units]).values())

    def _sources_of(self, units: Sequence[int]) -> dict[int, int]:
        sources, _ = self._units.segments.places(np.array(units, np.int64))
        return dict(zip(units, sources.tolist(), strict=True))

    def _apply_up_to(self, number: int) -> None:
        for done, effect in self._backlog.take_up_to(number):
            self._queue(effect.remainder)
            for walk, its in zip(self.walks, effect.yields, strict=False):
                # Of parts that end before their unit does, nobody knows how long they are.
                walk.ratio.add(its.bytes_in, its.bytes_out, its.records if its.bytes_out else 0)
            if len(self.walks) > 1:
                self._shares.apply(done, counted(self.walks, effect.yields))

    def _queue(self, parts: Sequence[UnitSlice]) -> None:
        places = self._sources_of([part.unit for part in parts])
        for part in parts:
            self.walks[places[part.unit]].next_up.append(part)

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
        for walk, ordinals in self._each(list(units)):
            walk.count.set_aside(ordinals.tolist())

    def take_back(self, units: Iterable[int]) -> None:
        """These units, set aside before, are handed out again when the walk comes by."""
        for walk, ordinals in self._each(list(units)):
            walk.count.take_back(ordinals.tolist())

    def gone(self, units: Units) -> None:
        """These units are not in the source any more: they are not handed out until they are back."""
        for walk, ordinals in self._each(units):
            walk.count.gone(ordinals)

    def back(self, units: Units) -> None:
        """These units, gone before, are in the source again."""
        for walk, ordinals in self._each(units):
            walk.count.back(ordinals)

    def aside(self, units: Units) -> NDArray[np.bool_]:
        """Which of these were set aside."""
        return self.told(units, lambda walk, ordinals: walk.count.aside(ordinals))

    def hold(self, units: Units) -> None:
        """A live shard holds records of these units, or several do: each names a unit once."""
        for walk, ordinals in self._each(units):
            walk.count.hold(ordinals)

    def release(self, units: Units) -> None:
        """A shard that held records of these units is gone."""
        for walk, ordinals in self._each(units):
            walk.count.release(ordinals)

    def give_back(self, units: Units, parts: Sequence[UnitSlice]) -> list[UnitSlice]:
        """A shard is lost that held these units, of some of them only `parts`: what no other has comes
        again at once. A part of a unit of which others hold the rest comes again as that part; those of
        units that are set aside do not, and are returned."""
        self.release(units)
        numbers = [part.unit for part in parts]
        aside, held = self.aside(numbers), self._held(numbers)
        self.resume(compress(parts, held & ~aside))
        return [*compress(parts, aside)]

    def several_hold(self) -> list[int]:
        """The units that are held more than once: cut ones, and those that should not be."""
        places = self._units.segments
        return [
            unit
            for place, walk in enumerate(self.walks)
            for unit in places.numbers(place, walk.count.several.astype(np.uint64)).tolist()
        ]

    def held_twice(self, units: Sequence[int]) -> list[int]:
        """Those of these that are held more than once."""
        return [*compress(units, self.told(units, lambda walk, found: walk.count.shared(found)))]

    def partly_held(self, units: Sequence[int]) -> list[int]:
        """Those of these that somebody holds something of."""
        return [*compress(units, self._held(units))]

    def _held(self, units: Units) -> NDArray[np.bool_]:
        return self.told(units, lambda walk, ordinals: walk.count.held(ordinals))

    def _each(self, units: Units) -> Iterator[tuple[SourceWalk, NDArray[np.int64]]]:
        """These units by their sources, as ordinals there."""
        sources, ordinals = self._units.segments.places(np.asarray(units, np.int64))
        for place, walk in enumerate(self.walks):
            if len(mine := ordinals[sources == place]):
                yield walk, mine

    def told(
        self, units: Units, ask: Callable[[SourceWalk, NDArray[np.int64]], NDArray[np.bool_]]
    ) -> NDArray[np.bool_]:
        """Of each of these what its source's walk is asked."""
        sources, ordinals = self._units.segments.places(np.asarray(units, np.int64))
        found = np.zeros(len(ordinals), np.bool_)
        for place, walk in enumerate(self.walks):
            mine = sources == place
            found[mine] = ask(walk, ordinals[mine])
        return found

    # --- across restarts

    def to_json(self) -> dict[str, Any]:
        """All of the plan but its open assignments, and which units live shards hold."""
        told = {
            "version": 1,
            "seed": self._seed,
            "next_number": self.next_number,
            "remainder": [part_of(u) for walk in self.walks for u in walk.next_up],
            **self._backlog.to_json(),
        }
        if len(self.walks) == 1:
            return told | self.walks[0].to_json()
        walks = [walk.to_json() for walk in self.walks]
        return told | {"version": 2, "sources": walks, "shares": self._shares.to_json()}

    def restore(self, saved: dict[str, Any], open_assignments: Iterable[Assignment]) -> None:
        """Continues a saved plan; the caller then tells what is held and set aside."""
        for walk, told in zip(self.walks, saved.get("sources", [saved]), strict=True):
            walk.restore(told)
        if "shares" in saved:
            self._shares.restore(saved["shares"])
        self.next_number = saved["next_number"]
        self._queue(slices_of(saved["remainder"], self._units.unit))
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
            self._queue([part])
            self.hold([part.unit])

    def skip_to(self, number: int, cursor: int | Sequence[int]) -> None:
        """Goes on after shard `number` where no plan was saved: its sidecar has the cursor."""
        self.next_number = number + 1
        self._backlog.applied = number
        cursors = [cursor] if isinstance(cursor, int) else cursor
        for walk, its in zip(self.walks, cursors, strict=False):
            walk.cycle.skip_to(its)

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

    def drop(self, begun: Container[tuple[int, int]]) -> list[UnitSlice]:
        """Forgets what is left to do that begins with these (unit, ordinal), and returns it."""
        dropped = self._backlog.drop(begun)
        for walk in self.walks:
            dropped += walk.drop(begun)
        self.release([u.unit for u in dropped])
        return dropped

    def let_go(self) -> list[UnitSlice]:
        """Forgets all that is left over, and all open assignments, whose numbers stay unused; returns what
        they had of units."""
        in_hand = self.left_over
        self.drop({(u.unit, u.ordinal) for u in in_hand})
        for number, assignment in self.open.items():
            self._backlog.skip(number, number + 1)
            self._shares.forget(number)
            self.release([u.unit for u in assignment.units])
            in_hand += assignment.units
        self.open.clear()
        return in_hand

    @property
    def cursor(self) -> int | list[int]:
        """The walk's position, counted over all passes, of several sources each one's; what sidecars
        carry."""
        cursors = [walk.cycle.cursor for walk in self.walks]
        return cursors[0] if len(cursors) == 1 else cursors
