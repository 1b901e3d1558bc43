"""The units that a person has taken out of a dataset. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from cachecd.model import ExcludedName, Outcome, UnitName, UnitSlice


class Excluded:
    """One dataset's, of this `source`.

    Names outlast a listing: under whatever number such a unit turns up, it is not fetched. `numbers` are
    those under which they are known to this listing so far. `shards` hold records of one, and are to be
    barred once it is known what else they hold.
    """

    def __init__(self, source: str = "") -> None:
        # A URL names a folder whether it ends in a slash or not.
        self._source = source.rstrip("/")
        self.names: set[UnitName] = set()
        """As the listing has them."""
        self.numbers: set[int] = set()
        self.shards: set[int] = set()
        self.sought = False
        """Since the start it is looked for which shards hold what was excluded before: nothing is leased
        until that is known."""

    def keep(self, kept: Iterable[ExcludedName]) -> None:
        """Adds names that were excluded before, of whatever URL: it may have been a copy of this source."""
        self.names.update((key, begin) for _, key, begin in kept)

    def known(self, names: Collection[UnitName]) -> bool:
        """Whether these are all that are excluded."""
        return self.names <= {*names}

    def add(self, units: Iterable[UnitSlice]) -> tuple[ExcludedName, ...]:
        """From now on these are; under these names they are to be kept."""
        added = []
        for unit in units:
            self.numbers.add(unit.unit)
            self.names.add(unit.name)
            added.append((self._source, *unit.name))
        return tuple(added)

    def out_of(self, outcome: Outcome) -> Outcome:
        """A shard's outcome without what is left of units that were excluded while it was made, and without
        other reasons for these."""
        numbers = self.numbers
        if not numbers:
            return outcome
        rest = tuple(unit for unit in outcome.remainder if unit.unit not in numbers)
        asides = tuple(aside for aside in outcome.set_aside if aside.unit not in numbers)
        return replace(outcome, remainder=rest, set_aside=asides)

    def among(self, units: Iterable[UnitSlice]) -> list[UnitSlice]:
        """Those of these that are."""
        return [unit for unit in units if unit.name in self.names] if self.names else []
