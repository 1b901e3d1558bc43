"""Which units fill a shard, of one source or of several. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from cachecd.backlog import Yield
from cachecd.model import MAX_UNITS, UnitSlice
from cachecd.shares import Shares
from cachecd.sourcewalk import Candidate, Offer, SourceWalk


class Filling:
    """What a shard is given: `taken` has the source of each unit and the unit, in their order; `records`
    are those expected of each source, `cut` the sources of which a unit is expected to be left over, and
    `without` those that had nothing. Nothing is spoken for until it is closed."""

    def __init__(self, walks: Sequence[SourceWalk], without: Iterable[int]) -> None:
        self.taken: list[tuple[int, Candidate]] = []
        self.records = [0.0] * len(walks)
        self.cut: set[int] = set()
        self.without = set(without)
        self.filled = 0
        self._walks = walks
        self._offers = [walk.offer() for walk in walks]

    def offer(self, source: int) -> Offer:
        return self._offers[source]

    def take(self, source: int, found: Candidate, records: float) -> None:
        """The unit that this source offers goes into the shard, and is expected to be so many records."""
        self._offers[source].take()
        self.taken.append((source, found))
        self.filled += found.cost
        self.records[source] += records
        if found.cut:
            self.cut.add(source)

    def numbers(self) -> list[tuple[UnitSlice | None, int]]:
        """The slices taken, or else the units' numbers."""
        fresh = [
            iter(walk.numbers(np.array(offer.ordinals, np.uint64)).tolist())
            for walk, offer in zip(self._walks, self._offers, strict=True)
        ]
        return [
            (found.slice, -1) if found.slice else (None, next(fresh[source]))
            for source, found in self.taken
        ]

    def close(self) -> None:
        """From now on what was taken is spoken for."""
        for offer in self._offers:
            offer.close()


def fill(
    walks: Sequence[SourceWalk], shares: Shares, target: int, without: Iterable[int] = ()
) -> Filling | None:
    """Units of whoever leads least, until about `target` bytes are reached; none of the sources `without`.

    None if the outcome of a shard that is not applied yet must be known first: the first one of each
    source tells what its units come to, and of a source that has nothing else at hand, what is left
    over. UnlistedError. Of one source it is simply what comes next.
    """
    several, expected = len(walks) > 1, _densities(walks)
    filling = Filling(walks, without)
    if several and shares.unsure:
        return None
    leads = shares.leads()
    begun: set[int] = set()
    # Whose next unit does not fit: it is first in the next shard. Others fill a shard that would be less
    # than half full, but no more than that: small units would go into the rest of each.
    passed: set[int] = set()
    while len(filling.taken) < MAX_UNITS and not (filling.taken and filling.filled >= target):
        ready = (s for s in range(len(walks)) if s not in filling.without | passed)
        source = min(ready, key=leads.__getitem__, default=-1)
        if source < 0:
            break
        if several and shares.awaits_first(source):
            return None
        found = filling.offer(source).peek()
        if found is None:
            if several and shares.expects_rest(source):
                return None
            filling.without.add(source)
            continue
        # A shard holds one stretch of a unit.
        again = found.slice is not None and found.slice.unit in begun
        if again or (filling.taken and filling.filled + found.cost > target):
            if filling.filled * 2 > target:
                break
            passed.add(source)
            continue
        if found.slice is not None:
            begun.add(found.slice.unit)
        records = found.cost * expected[source]
        filling.take(source, found, records)
        leads[source] += records / shares.weight(source)
    return filling


def counted(walks: Sequence[SourceWalk], yields: Sequence[Yield]) -> list[float]:
    """How many records a shard counts for each source, its yields being in the ratios already. What was
    set aside counts as what was expected of it, and so does a shard in which a source's units gave none: a
    source that gives nothing takes its turn, and no more."""
    if not any(walk.ratio.records for walk in walks):
        return [0.0] * len(walks)
    found = []
    for walk, its, density in zip(walks, yields, _densities(walks), strict=False):
        missing = its.bytes_aside if its.records else its.bytes_in + its.bytes_aside
        ratio = walk.ratio.bytes_out / walk.ratio.bytes_in if walk.ratio.bytes_in else 1.0
        found.append(its.records + missing * ratio * density)
    return found


def _densities(walks: Sequence[SourceWalk]) -> list[float]:
    """Records that a byte of a shard is expected to hold, of each source; one that has not shown it is
    taken to be like the others."""
    known = [walk.ratio for walk in walks if walk.ratio.records]
    mean = 1.0
    if known:
        mean = sum(ratio.records for ratio in known) / sum(ratio.bytes_out for ratio in known)
    return [walk.ratio.density or mean for walk in walks]
