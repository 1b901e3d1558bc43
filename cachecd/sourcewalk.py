"""The walk over one source of a plan: what it has to give the next shard, and how far it is. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True, slots=True)
class SourceRules:
    """What the configuration says of one source: its share of the records relative to the others', and how
    many of its units a shard mixes."""

    weight: float = 1.0
    interleave: int = 1
    name: str = ""


class UnlistedError(Exception):
    """The next unit is not listed yet."""


class Candidate(NamedTuple):
    """What a source gives next: a slice that was left over, or the unit of an `ordinal`.

    `cost`: what it takes of the shard at most; `cut`: there is more of it than that.
    """

    slice: UnitSlice | None
    ordinal: int
    cost: int
    cut: bool


class SourceWalk:
    """One source's place in a plan, in that source's own ordinals.

    `next_up` are the slices that come before what the walk comes to, first come, first served.
    """

    def __init__(
        self,
        place: int,
        units: UnitTable,
        seed: int,
        target: int,
        rules: SourceRules,
    ) -> None:
        """`target`: bytes that a shard is to have of all sources together."""
        self.next_up: deque[UnitSlice] = deque()
        self.count = UnitCount()
        self.ratio = Ratio()
        # So that sources of the same length are not walked in step.
        self.cycle = Cycle((seed + 0xD1B54A32D192ED03 * place) % (1 << 64))
        self._place = place
        self._units = units
        self._target = target
        self._interleave = rules.interleave
        self._made_do: int | None = None  # with so many units

    # --- the listing

    @property
    def length(self) -> int:
        """How many units are listed."""
        return self._units.segments.lengths[self._place]

    def extend(self, complete: bool) -> None:
        """Takes up the blocks that the listing has gained; `complete`: there will be no more of them."""
        for end in self._units.ends_of(self._place):
            if end > self.cycle.num_units:
                self.add_block(end)
        if complete or self.length != self._made_do:
            self._made_do = None
            self.cycle.more_to_come = not complete
            self._ends()

    def make_do(self) -> None:
        """The listing does not get on: what it has found till now is walked, again and again."""
        if not self.cycle.more_to_come:
            return
        if self.length > self.cycle.num_units:
            self.add_block(self.length)
        self._made_do = self.length
        self.cycle.more_to_come = False
        self._ends()

    def _ends(self) -> None:
        """Whether more is to come may have changed."""
        self.cycle.catch_up()
        self.cycle.move_to(self.cycle.position)

    def add_block(self, end: int) -> None:
        begin = self.cycle.num_units
        self.cycle.add_block(end)
        self.count.extend(end - begin)

    # --- figures

    @property
    def has_work(self) -> bool:
        """Whether any unit is neither held, nor being made, nor set aside, or something is left over."""
        return self.count.num_free > 0 or bool(self.next_up)

    @property
    def estimated_bytes(self) -> int:
        """What all of it takes as shards."""
        return self.ratio.estimate_all(self._units.segments.bytes[self._place], self.length)

    @property
    def fresh_bytes(self) -> int:
        """About what the free units take."""
        return self.estimated_bytes * self.count.num_free // max(self.length, 1)

    def recount(self, coming: Units) -> None:
        """After a restart, which units were in a shard; but for these, which are in hand."""
        self.count.recount(self.cycle.walked_over(), coming)

    # --- assigning

    def offer(self) -> Offer:
        """What it has for the next shard."""
        return Offer(self, self._share())

    def _share(self) -> int:
        """What a shard takes at most of one unit, so that it mixes as many as it shall."""
        blocks = self.cycle.blocks
        if not blocks or not blocks[0] or self._interleave == 1 or self._first_unit().seems_packed:
            return self._target
        # Not the number of all units: a listing that runs must not show.
        most = blocks[0] // _AT_ONCE
        return self._target // max(min(self._interleave, most), 1)

    def _first_unit(self) -> UnitSlice:
        return self._units.unit(int(self.numbers(np.zeros(1, np.uint64))[0]))

    def numbers(self, ordinals: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The numbers of these units."""
        return self._units.segments.numbers(self._place, ordinals)

    def fresh(self) -> Iterator[tuple[int, int, int]]:
        """The free units that come next: position in the cycle, ordinal, and what it takes. UnlistedError
        at the end of what is listed, where more is to come."""
        cycle = self.cycle
        position = cycle.position
        left = cycle.left if self.count.num_free or cycle.more_to_come else 0
        while left:
            numbers = cycle.ahead(position, min(self._reach(), left))
            places = np.flatnonzero(self.count.free(numbers))
            sizes = self._units.sizes(self.numbers(numbers[places]))
            costs = self.ratio.estimate(sizes)
            yield from zip(
                (places + position).tolist(), numbers[places].tolist(), costs.tolist(), strict=True
            )
            position += len(numbers)
            left -= len(numbers)
        if cycle.more_to_come:
            raise UnlistedError

    def _reach(self) -> int:
        """How far to look ahead at a time: no choice depends on it, only how soon it is made."""
        mean = max(self.estimated_bytes // max(self.length, 1), 1)
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
        told |= {"target": self.cycle.target} if self.cycle.target else {}
        return told | ({"records": self.ratio.records} if self.ratio.records else {})

    def _walked(self) -> dict[str, Any]:
        """What `recount` goes by. Of more than can be saved here, only what is on disk then counts."""
        missed = self.count.missed
        if len(missed) > _MOST_MISSED:
            return {}
        return {"walked": self.cycle.walked, "missed": sorted(missed)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continues from what `to_json` gave."""
        for end in saved["blocks"]:
            self.add_block(end)
        self.cycle.passes, self.cycle.position = saved["passes"], saved["position"]
        self.cycle.walked = [*saved.get("walked", self.cycle.walked)]
        self.count.missed.update(saved.get("missed", ()))
        self.cycle.target = saved.get("target", 0)
        self.ratio.add(saved["bytes_in"], saved["bytes_out"], saved.get("records", 0))


class Offer:
    """A source's candidates for one shard, in their order. Nothing changes by looking at them."""

    def __init__(self, walk: SourceWalk, share: int) -> None:
        self.ordinals: list[int] = []
        """Of the units taken that were not begun before."""
        self._walk = walk
        self._share = share
        self._rest = iter(walk.next_up)
        self._fresh = walk.fresh()
        self._next: Candidate | None = None
        self._position = self._after = walk.cycle.position
        self._slices = 0

    def peek(self) -> Candidate | None:
        """What comes next, None if nothing does. UnlistedError."""
        if self._next is None:
            self._next = self._found()
        return self._next

    def _found(self) -> Candidate | None:
        if (rest := next(self._rest, None)) is not None:
            cost = self._walk.ratio.estimate_of(rest)
            return Candidate(rest, -1, min(cost, self._share), cost > self._share)
        if (fresh := next(self._fresh, None)) is None:
            return None
        self._position, ordinal, cost = fresh
        return Candidate(None, ordinal, min(cost, self._share), cost > self._share)

    def take(self) -> None:
        """What was looked at last goes into the shard."""
        assert self._next is not None
        if self._next.slice is None:
            self.ordinals.append(self._next.ordinal)
            self._after = self._position + 1
        else:
            self._slices += 1
        self._next = None

    def close(self) -> None:
        """The shard is planned: what was taken is spoken for."""
        walk = self._walk
        for _ in range(self._slices):
            walk.next_up.popleft()
        walk.count.hold(np.array(self.ordinals, np.uint64))
        walk.cycle.move_to(self._after)
