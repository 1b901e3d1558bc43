"""The units that a person has taken out of a dataset. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from cachecd.model import ExcludedName, Outcome, UnitName, UnitSlice


class Excluded:
    """One dataset's, of this `source`.

    Names outlast a listing: under whatever number such a unit turns up, it is not fetched. `numbers` are
    those under which they are known to this listing so far. `shards` hold records of one, and are to be
    barred once it is known what else they hold. Who takes a unit back gets it whole: what came to nothing
    of a cut one meanwhile is remembered.
    """

    def __init__(self, source: str = "") -> None:
        # A URL names a folder whether it ends in a slash or not.
        self._source = source.rstrip("/")
        self._kept: dict[UnitName, set[ExcludedName]] = {}
        self.numbers: set[int] = set()
        self.shards: set[int] = set()
        self.sought = False
        """Since the start it is looked for which shards hold what was excluded before: nothing is leased
        until that is known."""
        self._lost: dict[int, list[UnitSlice]] = {}

    @property
    def names(self) -> Collection[UnitName]:
        """As the listing has them."""
        return self._kept.keys()

    def keep(self, kept: Iterable[ExcludedName]) -> None:
        """Adds names that were excluded before, of whatever URL: it may have been a copy of this source."""
        for name in kept:
            _, key, begin = name
            self._kept.setdefault((key, begin), set()).add(name)

    def known(self, names: Collection[UnitName]) -> bool:
        """Whether these are all that are excluded."""
        return self._kept.keys() <= {*names}

    def add(self, units: Iterable[UnitSlice]) -> tuple[ExcludedName, ...]:
        """From now on these are; under these names they are to be kept."""
        added = []
        for unit in units:
            self.numbers.add(unit.unit)
            name = (self._source, *unit.name)
            self._kept.setdefault(unit.name, set()).add(name)
            added.append(name)
        return tuple(added)

    def remove(self, units: Iterable[UnitSlice]) -> tuple[ExcludedName, ...]:
        """From now on these are not; these names are not to be kept."""
        removed: list[ExcludedName] = []
        for unit in units:
            self.numbers.discard(unit.unit)
            removed += sorted(self._kept.pop(unit.name, ()))
        return tuple(removed)

    def lose(self, parts: Iterable[UnitSlice]) -> None:
        """Nobody holds these any more, nor are they to be fetched."""
        for part in parts:
            if part.unit in self.numbers:
                self._lost.setdefault(part.unit, []).append(part)

    def take_lost(self, units: Iterable[UnitSlice]) -> list[UnitSlice]:
        """What nobody holds of these, which are excluded no longer; it is handed out once."""
        return [part for unit in units for part in self._lost.pop(unit.unit, ())]

    def out_of(self, outcome: Outcome, held: Collection[int]) -> Outcome:
        """The outcome of a shard that holds records of the units `held`, without what is left of units that
        were excluded while it was made, and without other reasons for these."""
        numbers = self.numbers
        if not numbers:
            return outcome
        # Without a rest, a shard that holds records of a unit stands for all of it that it was to have.
        self.lose(unit for unit in outcome.remainder if unit.unit not in held)
        rest = tuple(unit for unit in outcome.remainder if unit.unit not in numbers)
        asides = tuple(aside for aside in outcome.set_aside if aside.unit not in numbers)
        return replace(outcome, remainder=rest, set_aside=asides)

    def among(self, units: Iterable[UnitSlice]) -> list[UnitSlice]:
        """Those of these that are."""
        return [unit for unit in units if unit.name in self._kept] if self._kept else []
