"""Which units make shard N: one keyed permutation of the source, walked cyclically. Pure.

What a shard is to hold follows from the listing, the seed and the outcomes of the shards at least
WINDOW numbers before it, never from timing: up to WINDOW shards are made at once, finish in any
order, and still every one of them is the same on every run.

An outcome matters to later shards in two ways. What did not fit (the *remainder*) goes into the
next shards, first come, first served. And what a byte of the source became (the *ratio*) decides
how many units the next shards are given.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cachecd.model import Assignment, Outcome, SetAside, ShardId, UnitSlice
from cachecd.unitcount import UnitCount, Units
from cachecd_client._core import Permutation

WINDOW = 16
_RECORD_OVERHEAD = 36  # framing and sidecar
# Framing, sidecar, key and label of a small object; corrected by the ratio later.
_UNIT_OVERHEAD = 128
# A unit that does not fit is fetched twice, so aim a little below the full shard.
_FILL = 0.97
# Bounds what one assignment takes in the catalog and on a pipe (about 15 kB and 400 kB), and how long
# planning it keeps the event loop (50 ms), however small the objects are.
MAX_UNITS = 4096
_NOTHING = Outcome(0, 0, 0, 0, 0, 0.0)


class UnitTable(Protocol):
    """The listing, as far as the plan needs it; units are numbered from 0."""

    def __len__(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    def sizes(self, numbers: NDArray[np.uint64]) -> NDArray[np.int64]: ...
    def unit(self, number: int) -> UnitSlice: ...


@dataclass(frozen=True, slots=True)
class Blocked:
    """The next shard depends on the outcome of a shard that is still being made."""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Every unit is held by live shards, being made, or set aside."""


class Plan:
    """One dataset's walk over its source.

    `assign` hands out shard numbers 1, 2, 3 ... and must be called in that order; every assigned
    number must come back through `finish`, in any order. `hold` and `release` say which units live
    shards hold. A unit that is held, assigned or waiting as a remainder is skipped by the walk, so
    its records are never in two shards of one pass.
    """

    def __init__(
        self, dataset: str, generation: str, units: UnitTable, seed: int, shard_size: int
    ) -> None:
        self.dataset = dataset
        self.generation = generation
        self.next_number = 1
        self.open: dict[int, Assignment] = {}
        self._units = units
        self._seed = seed
        self._target = int(shard_size * _FILL)
        self._blocks: list[int] = []  # ends of the listing's blocks: each is permuted by itself
        self._permutations: list[Permutation] = []
        self._passes = 0
        self._position = 0
        self._remainder: deque[UnitSlice] = deque()
        self._bytes_in = 0
        self._bytes_out = 0
        self._applied = 0  # outcomes up to this number have had their effect on the plan
        self._outcomes: dict[int, Outcome] = {}  # finished, not yet applied
        self._count = UnitCount()

    # --- the listing

    def extend(self) -> None:
        """Takes up the units that the listing has gained, as a block of their own."""
        count = len(self._units)
        if count > (self._blocks[-1] if self._blocks else 0):
            self._add_block(count)

    def _add_block(self, end: int) -> None:
        begin = self._blocks[-1] if self._blocks else 0
        self._blocks.append(end)
        key = (self._seed + 0x9E3779B97F4A7C15 * (len(self._blocks) - 1)) % (1 << 64)
        self._permutations.append(Permutation(end - begin, key))
        self._count.extend(end - begin)

    @property
    def num_units(self) -> int:
        return self._blocks[-1] if self._blocks else 0

    @property
    def num_aside(self) -> int:
        return self._count.num_aside

    @property
    def has_work(self) -> bool:
        """Whether any unit is neither held, nor being made, nor set aside."""
        left_over = self._remainder or any(o.remainder for o in self._outcomes.values())
        return bool(left_over) or self._count.num_free > 0

    @property
    def estimated_bytes(self) -> int:
        """What the whole source takes as shards, by the ratio seen so far."""
        if self._bytes_in and self._bytes_out:
            return int(self._units.total_bytes * (self._bytes_out / self._bytes_in))
        return self._units.total_bytes + _UNIT_OVERHEAD * self.num_units

    @property
    def missing_bytes(self) -> int:
        """What the units take that are neither held, nor being made, nor set aside."""
        free = self._count.all_free()
        left_over = sum(max(u.size - u.offset, 0) for u in self._remainder)
        for outcome in self._outcomes.values():
            left_over += sum(max(u.size - u.offset, 0) for u in outcome.remainder)
        sizes = np.append(self._units.sizes(free), np.int64(left_over))
        return int(self._estimate(sizes).sum())

    @property
    def coverage(self) -> float:
        """Share of the source that the walk has handed out at least once, 0..1."""
        if self._passes:
            return 1.0
        return self._position / self.num_units if self.num_units else 0.0

    # --- assigning

    def assign(self) -> Assignment | Blocked | Exhausted:
        """The next shard's units: at least one, and about as many as fill it."""
        number = self.next_number
        self._apply_up_to(number - WINDOW)
        while True:
            if number - self._applied > WINDOW:
                return Blocked()
            if taken := self._take_or_leave():
                break
            # Nothing to hand out; what shards still being made leave over may change that, and is
            # taken up in their order so that the outcome is the same on every run.
            if self._applied == number - 1:
                return Exhausted()
            if self._applied + 1 not in self._outcomes:
                return Blocked()
            self._apply_up_to(self._applied + 1)
        assignment = Assignment(ShardId(self.dataset, number), self.generation, tuple(taken))
        self.open[number] = assignment
        self.next_number = number + 1
        self._count.hold(_numbers(assignment.units))
        return assignment

    def _estimate(self, size: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._bytes_in and self._bytes_out:
            scaled = (size * (self._bytes_out / self._bytes_in)).astype(np.int64)
            return np.maximum(scaled, _RECORD_OVERHEAD)
        return size + _UNIT_OVERHEAD

    def _take_or_leave(self) -> list[UnitSlice]:
        """As `_take`; if a unit cannot be read from the index, everything stays as it was."""
        before = tuple(self._remainder), self._position, self._passes
        try:
            return self._take()
        except BaseException:
            taken = before[0][: len(before[0]) - len(self._remainder)]
            self._remainder, (_, self._position, self._passes) = deque(before[0]), before
            self._count.hold(_numbers(taken))
            raise

    def _take(self) -> list[UnitSlice]:
        """Remainders first, then fresh units from the walk, until the target is reached."""
        taken: list[UnitSlice] = []
        filled = 0
        while self._remainder:
            unit = self._remainder[0]
            cost = int(self._estimate(np.array([max(unit.size - unit.offset, 0)], np.int64))[0])
            if taken and (filled + cost > self._target or len(taken) == MAX_UNITS):
                return taken
            taken.append(self._remainder.popleft())
            self._count.release([unit.unit])
            filled += cost
        own = {unit.unit for unit in taken}
        left = self.num_units  # one cycle at most
        while left and len(taken) < MAX_UNITS and (filled < self._target or not taken):
            numbers, walked = self._ahead(min(MAX_UNITS, left))
            places = np.flatnonzero(self._count.free(numbers))
            costs = self._estimate(self._units.sizes(numbers[places]))
            fits = int(np.searchsorted(np.cumsum(costs), self._target - filled, side="right"))
            fits = min(max(fits, 0 if taken else 1), MAX_UNITS - len(taken))
            chosen = [int(n) for n in numbers[places[:fits]] if int(n) not in own]
            taken += [self._units.unit(n) for n in chosen]
            filled += int(costs[:fits].sum())
            if fits < len(places):  # the next one does not fit: it is the next shard's first
                self._advance(int(places[fits]))
                break
            self._advance(walked)
            left -= walked
        return taken

    def _ahead(self, count: int) -> tuple[NDArray[np.uint64], int]:
        """Up to `count` units from the walk's position on, within one block."""
        block = bisect_right(self._blocks, self._position)
        begin = self._blocks[block - 1] if block else 0
        count = min(count, self._blocks[block] - self._position)
        taken = self._permutations[block].take(self._position - begin, count)
        return taken + np.uint64(begin), count

    def _advance(self, count: int) -> None:
        self._position += count
        if self._position == self.num_units:
            self._position = 0
            self._passes += 1

    # --- outcomes

    def finish(self, number: int, outcome: Outcome, held: Sequence[int]) -> None:
        """Shard `number` is done and holds records of the units `held` (none if it is empty)."""
        assignment = self.open.pop(number)
        self._count.release(_numbers(assignment.units))
        self._count.hold(held)
        self._count.hold(_numbers(outcome.remainder))  # reserved until its turn comes
        self.set_aside(s.unit for s in outcome.set_aside)
        size_in = sum(max(u.size - u.offset, 0) for u in assignment.units)
        size_in -= sum(max(u.size - u.offset, 0) for u in outcome.remainder)
        aside = {s.unit for s in outcome.set_aside}
        size_in -= sum(u.size for u in assignment.units if u.unit in aside)
        self._outcomes[number] = Outcome(
            outcome.records, outcome.data_bytes, outcome.sidecar_bytes, outcome.allocated,
            max(size_in, 0), 0.0, outcome.remainder,
        )  # fmt: skip

    def _apply_up_to(self, number: int) -> None:
        while self._applied < number and self._applied + 1 in self._outcomes:
            self._applied += 1
            outcome = self._outcomes.pop(self._applied)
            self._remainder.extend(outcome.remainder)
            self._bytes_in += outcome.fetched_bytes
            self._bytes_out += outcome.data_bytes + outcome.sidecar_bytes

    def without(self, number: int, aside: SetAside) -> Assignment:
        """Takes a unit on which workers die out of an open assignment, and sets it aside."""
        old = self.open[number]
        self._count.release([u.unit for u in old.units if u.unit == aside.unit])
        self.set_aside([aside.unit])
        self.open[number] = Assignment(
            old.shard, old.generation, tuple(u for u in old.units if u.unit != aside.unit)
        )
        return self.open[number]

    def set_aside(self, units: Iterable[int]) -> None:
        """These units are not handed out again."""
        self._count.set_aside(list(units))

    def take_back(self, units: Iterable[int]) -> None:
        """These units, set aside before, are handed out again when the walk comes by."""
        self._count.take_back(list(units))

    def hold(self, units: Units) -> None:
        """A live shard holds records of these units, or several do: each names a unit once."""
        self._count.hold(units)

    def release(self, units: Units) -> None:
        """A shard that held records of these units is gone."""
        self._count.release(units)

    # --- across restarts

    def to_json(self) -> dict[str, Any]:
        """All of the plan but its open assignments, and which units live shards hold."""

        def triples(units: Iterable[UnitSlice]) -> list[list[int]]:
            return [[u.unit, u.ordinal, u.offset] for u in units]

        return {
            "version": 1,
            "seed": self._seed,
            "next_number": self.next_number,
            "blocks": self._blocks,
            "passes": self._passes,
            "position": self._position,
            "remainder": triples(self._remainder),
            "bytes_in": self._bytes_in,
            "bytes_out": self._bytes_out,
            "applied": self._applied,
            "outcomes": {
                str(n): [o.data_bytes, o.sidecar_bytes, o.fetched_bytes, triples(o.remainder)]
                for n, o in self._outcomes.items()
            },
        }

    def restore(self, saved: dict[str, Any], open_assignments: Iterable[Assignment]) -> None:
        """Continues a saved plan; the caller then tells what is held and set aside."""

        def slices(triples: Iterable[Sequence[int]]) -> tuple[UnitSlice, ...]:
            found = []
            for number, ordinal, offset in triples:
                unit = self._units.unit(number)
                found.append(UnitSlice(number, unit.key, unit.size, unit.etag, ordinal, offset))
            return tuple(found)

        for end in saved["blocks"]:
            self._add_block(end)
        self.next_number = saved["next_number"]
        self._passes, self._position = saved["passes"], saved["position"]
        self._bytes_in, self._bytes_out = saved["bytes_in"], saved["bytes_out"]
        self._applied = saved["applied"]
        self._remainder.extend(slices(saved["remainder"]))
        self._count.hold(_numbers(self._remainder))
        for number, (data, sidecar, fetched, remainder) in saved["outcomes"].items():
            outcome = Outcome(0, data, sidecar, 0, fetched, 0.0, slices(remainder))
            self._outcomes[int(number)] = outcome
            self._count.hold(_numbers(outcome.remainder))
        for assignment in open_assignments:
            number = assignment.shard.number
            if number <= self._applied or number in self._outcomes:
                continue  # it was finished, but its row outlived a failed write
            self.open[assignment.shard.number] = assignment
            self._count.hold(_numbers(assignment.units))

    def resume(self, parts: Iterable[UnitSlice]) -> None:
        """What is left of units that live shards hold the beginning of, and no saved plan knows."""
        for part in parts:
            self._remainder.append(part)
            self._count.hold([part.unit])

    def skip_to(self, number: int, cursor: int) -> None:
        """Goes on after shard `number` where no plan was saved: its sidecar has the cursor."""
        self.next_number = number + 1
        self._applied = number
        if self.num_units:
            self._passes, self._position = divmod(cursor, self.num_units)

    def overtake(self, number: int, parts: Iterable[UnitSlice] = ()) -> None:
        """Number `number` is taken by a shard that was made after this plan was last saved, and that
        left `parts` of units to do. Numbers before it that are not known to be taken stay unused."""
        for unused in range(self.next_number, number):
            self._outcomes[unused] = _NOTHING
        mine = {(u.unit, u.ordinal) for u in self._left_over()}
        rest = tuple(u for u in parts if (u.unit, u.ordinal) not in mine)
        self._outcomes[number] = replace(_NOTHING, remainder=rest)
        self._count.hold(_numbers(rest))
        self.next_number = number + 1

    def drop(self, begun: Container[tuple[int, int]]) -> None:
        """Of what is left to do, these (unit, ordinal) have been begun by shards that overtook."""
        done = [u for u in self._left_over() if (u.unit, u.ordinal) in begun]
        self._count.release(_numbers(done))
        self._remainder = deque(u for u in self._remainder if u not in done)
        for number, outcome in self._outcomes.items():
            rest = tuple(u for u in outcome.remainder if u not in done)
            self._outcomes[number] = replace(outcome, remainder=rest)

    def _left_over(self) -> list[UnitSlice]:
        """What did not fit into shards that are done, and is in no other yet."""
        return [*self._remainder, *(u for o in self._outcomes.values() for u in o.remainder)]

    @property
    def cursor(self) -> int:
        """The walk's position, counted over all passes; what sidecars carry."""
        return self._passes * self.num_units + self._position


def _numbers(units: Iterable[UnitSlice]) -> list[int]:
    return [unit.unit for unit in units]
