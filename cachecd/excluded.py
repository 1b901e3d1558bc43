"""The units that a person has taken out of a dataset. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cachecd.model import Outcome, UnitName, UnitSlice


class Excluded:
    """One dataset's.

    `names` outlast a listing: under whatever number such a unit turns up, it is not fetched. `numbers`
    are those under which they are known to this listing so far. `shards` hold records of one, and are
    to be barred once it is known what else they hold.
    """

    def __init__(self) -> None:
        self.names: set[UnitName] = set()
        self.numbers: set[int] = set()
        self.shards: set[int] = set()

    def add(self, units: Iterable[UnitSlice]) -> None:
        """From now on these are."""
        for unit in units:
            self.names.add(unit.name)
            self.numbers.add(unit.unit)

    def remove(self, units: Iterable[UnitSlice]) -> None:
        """From now on these are not."""
        for unit in units:
            self.names.discard(unit.name)
            self.numbers.discard(unit.unit)

    def out_of(self, outcome: Outcome) -> Outcome:
        """The outcome of a shard, without what is left of units that were excluded while it was made, and
        without other reasons for these."""
        numbers = self.numbers
        if not numbers:
            return outcome
        rest = tuple(unit for unit in outcome.remainder if unit.unit not in numbers)
        asides = tuple(aside for aside in outcome.set_aside if aside.unit not in numbers)
        return replace(outcome, remainder=rest, set_aside=asides)

    def among(self, units: Iterable[UnitSlice]) -> list[UnitSlice]:
        """Those of these that are."""
        return [unit for unit in units if unit.name in self.names] if self.names else []
