"""The units that a person has taken out of a dataset. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from cachecd.model import Outcome, UnitName, UnitSlice


class Excluded:
    """The exclusions of one dataset.

    `names` outlast a listing: under whatever number such a unit turns up, it is not fetched. `numbers` are
    those under which they are known to this listing so far. `shards` hold records of one, and are to be
    barred once it is known what else they hold.
    """

    def __init__(self) -> None:
        self.names: set[UnitName] = set()
        self.numbers: set[int] = set()
        self.shards: set[int] = set()
        self.sought = False
        """Since the start it is looked for which shards hold what was excluded before: nothing is leased
        until that is known."""

    def known(self, names: Collection[UnitName]) -> bool:
        """Whether these are all that are excluded."""
        return self.names <= {*names}

    def add(self, units: Iterable[UnitSlice]) -> None:
        """Excludes these units."""
        for unit in units:
            self.numbers.add(unit.unit)
            self.names.add(unit.name)

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
