"""The walk over a source: chooses the units of the next shard, and keeps the walk's place. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cachecd.cycle import Cycle
from cachecd.model import MAX_UNITS, UnitSlice
from cachecd.unitcount import UnitCount, Units

# Of a cache that holds nearly everything, much is walked over for each unit that is free.
_LONGEST_REACH = 1 << 16
# Units that came back to the source and were in no shard yet; they are saved with each plan.
_MOST_MISSED = 256
# A unit is in one shard at a time: of a source of few units, so many shards can be made at once.
_AT_ONCE = 4
_RECORD_OVERHEAD = 36  # framing and sidecar
# Framing, sidecar, key and label of a small object; corrected by the ratio later.
_UNIT_OVERHEAD = 128


class UnitTable(Protocol):
    """The listing, as far as the plan needs it; units are numbered from 0."""

    def __len__(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """Bytes of all units together."""

    @property
    def ends(self) -> Sequence[int]:
        """The ends of the blocks that are listed, ascending. They follow from the listing alone, and a
        block's end never changes."""

    def sizes(self, numbers: NDArray[np.uint64]) -> NDArray[np.int64]: ...
    def unit(self, number: int) -> UnitSlice: ...


class Ratio:
    """Bytes of shards for each byte of the source, measured over all shards."""

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0

    def add(self, bytes_in: int, bytes_out: int) -> None:
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out

    def estimate(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of shards that units of these sizes take."""
        if self.bytes_in and self.bytes_out:
            scaled = (sizes * (self.bytes_out / self.bytes_in)).astype(np.int64)
            return np.maximum(scaled, _RECORD_OVERHEAD)
        return sizes + _UNIT_OVERHEAD

    def estimate_of(self, unit: UnitSlice) -> int:
        """Bytes of shards that this slice takes."""
        return int(self.estimate(np.array([max(unit.size - unit.offset, 0)], np.int64))[0])

    def estimate_all(self, total: int, units: int) -> int:
        """Bytes of shards that so many units of `total` bytes take."""
        if self.bytes_in and self.bytes_out:
            return int(total * (self.bytes_out / self.bytes_in))
        return total + _UNIT_OVERHEAD * units


class UnlistedError(Exception):
    """The next unit is not listed yet."""


class _Candidate(NamedTuple):
    """A unit for the next shard: a `part` that earlier shards left over, or else the whole unit `number`.
    It takes about `cost` bytes of shards. Behind a whole unit the walk is at `position`."""

    part: UnitSlice | None
    number: int
    cost: int
    position: int


class SourceWalk:
    """A place in the source. `next_up` are parts of units that earlier shards left over: the next shards
    take these parts first, in this order."""

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
        """Adds the blocks that the listing has gained; `complete`: the listing gains no more."""
        for end in self._units.ends:
            if end > self.cycle.num_units:
                self._add_block(end)
        if complete or len(self._units) != self._made_do:
            self._made_do = None
            self.cycle.more_to_come = not complete
            self._ends()

    def make_do(self) -> None:
        """Walks the units listed so far, again and again: the listing fails."""
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
        """Bytes of shards that the whole source takes."""
        return self.ratio.estimate_all(self._units.num_bytes, len(self._units))

    @property
    def fresh_bytes(self) -> int:
        """About the bytes of shards that the free units take."""
        return self.estimated_bytes * self.count.num_free // max(len(self._units), 1)

    def recount(self, coming: Units) -> None:
        """After a restart, counts the units that were in a shard, without the units `coming`."""
        self.count.recount(self.cycle.walked_over(), coming)

    # --- assigning

    def take(self) -> tuple[UnitSlice, ...]:
        """Holds the units of the next shard, about as many as fill it, and returns them; none if no unit is
        free. If the unit table raises, or with UnlistedError, the walk has not moved."""
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
        """The most bytes that a shard takes of one unit, so that the shard mixes `interleave` units."""
        blocks = self.cycle.blocks
        if not blocks or not blocks[0] or self._interleave == 1 or self._units.unit(0).seems_packed:
            return self._target
        # Not the number of all units: a listing that runs must not show.
        most = blocks[0] // _AT_ONCE
        return self._target // max(min(self._interleave, most), 1)

    def _fresh(self) -> Iterator[_Candidate]:
        """The next free units. UnlistedError at the end of the listed units, if the listing goes on."""
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
        state = {
            "blocks": self.cycle.blocks,
            "passes": self.cycle.passes,
            "position": self.cycle.position,
            **self._walked(),
            "bytes_in": self.ratio.bytes_in,
            "bytes_out": self.ratio.bytes_out,
        }
        return state | ({"target": self.cycle.target} if self.cycle.target else {})

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
