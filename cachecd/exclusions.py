"""Units that a person takes out of a dataset while the daemon runs: found in the listing and in the
shards, without keeping anything else waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from cachecd.catalog import Catalog
from cachecd.dataset import DatasetState
from cachecd.errors import DiskError
from cachecd.events import Event, ExclusionsKnown, HoldersFound, UnitsExcluded
from cachecd.index import Index
from cachecd.model import UnitName, UnitSlice
from cachecd.saving import PlanSaver
from cachecd.unittext import for_the_log
from cachecd_client import protocol
from cachecd_client.protocol import Exclude, Refused, Reply, Waiting

_SEARCHING = "looking for its units and shards"
_POLL = 0.1  # seconds, while the catalog's disk refuses
_LONGEST = 60.0
_ANSWERS = 256  # that nobody came back for
_SOUGHT = 16  # at once: each takes a thread, and whoever asks for more asks again
_KEPT = 60.0  # seconds for which whoever asked may come back for what was found

_log = structlog.get_logger("cachecd.exclusions")
_Asked = tuple[str, str, int | None]


class Exclusions:
    """Answers Exclude: at first that it is being looked for, then once what came of it."""

    def __init__(
        self,
        directory: Path,
        catalog: Catalog,
        saver: PlanSaver,
        indexes: Mapping[str, Index],
        datasets: Mapping[str, DatasetState],
        feed: Callable[[Event], None],
        spawn: Callable[[Awaitable[None]], None],
    ) -> None:
        self._directory = directory
        self._catalog = catalog
        self._saver = saver
        self._indexes = indexes
        self._datasets = datasets
        self._feed = feed
        self._spawn = spawn
        self._sought: set[_Asked] = set()
        self._found: dict[_Asked, tuple[float, tuple[int, int] | str]] = {}  # when, and what

    def answer(self, request: Exclude) -> Reply:
        """What is known by now."""
        asked = request.dataset, request.key, request.begin
        if request.dataset not in self._indexes:
            return Refused(request.id, "unknown-dataset", f"no dataset {request.dataset!r}")
        self._forget()
        if asked not in self._found:
            if asked not in self._sought and len(self._sought) < _SOUGHT:
                self._sought.add(asked)
                self._spawn(self._carry_out(asked))
            why = f"not done yet: {self._saver.reason}" if self._saver.behind else _SEARCHING
            return Waiting(request.id, 0, 0, 0.0, why)
        _, found = self._found.pop(asked)  # asked again, it is looked for again
        if isinstance(found, str):
            return Refused(request.id, "bad-request", found)
        return protocol.Excluded(request.id, *found)

    def start(self) -> None:
        """What was excluded before is looked for again: a daemon that was killed may not have come to all
        its shards, and the source may have been listed anew.

        The shards that hold what is known of it by number are named before this returns. Where that is not
        all, as after the loss of the catalog, or a disk that fails does not tell, nothing is leased until
        the rest is found. Where nothing was excluded it takes no time.
        """
        for dataset, state in self._datasets.items():
            found, alike = state.excluded, state.numbered_alike
            with suppress(DiskError):
                if found.numbers:
                    for some in self._catalog.holders(dataset, found.numbers, alike):
                        self._feed(HoldersFound(dataset, some))
                if found.sought and set(state.live.generations) <= set(alike):
                    index = self._indexes[dataset]
                    if found.known({index.unit(number).name for number in found.numbers}):
                        self._feed(ExclusionsKnown(dataset))
            if found.names:
                self._spawn(self._again(dataset, frozenset(found.names)))
        configured = {
            n for name in self._datasets for n in self._datasets[name].rules.excluded_names
        }
        for other, number in self._catalog.excluded_elsewhere(configured).items():
            _log.warning(
                "exclusions of a dataset that is not configured now", dataset=other, number=number
            )

    async def _again(self, dataset: str, names: frozenset[UnitName]) -> None:
        pause = _POLL
        while True:
            try:
                await self._find_again(dataset, names)
            except DiskError as error:
                _log.warning("exclusions not looked for", dataset=dataset, why=str(error))
            except Exception:  # what a person took out must not come again because of a defect
                _log.exception("exclusions not looked for", dataset=dataset)
            else:
                if self._datasets[dataset].excluded.sought:
                    self._feed(ExclusionsKnown(dataset))
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST)

    async def _find_again(self, dataset: str, names: frozenset[UnitName]) -> None:
        keys = {key for key, _ in names}
        listed = await asyncio.to_thread(self._indexes[dataset].find, *keys)
        if units := tuple(unit for unit in listed if unit.name in names):
            await self._take_out(dataset, units)
        # Shards that name their units by another listing may hold what this one does not have, or not yet.
        if left := names - {unit.name for unit in units}:
            self._feed(HoldersFound(dataset, await self._in_older(dataset, left, unknown=False)))

    def _forget(self) -> None:
        """Answers for which nobody came back."""
        late = time.monotonic() - _KEPT
        for asked, (when, _) in list(self._found.items()):
            if when <= late:
                del self._found[asked]

    async def _carry_out(self, asked: _Asked) -> None:
        found: tuple[int, int] | str = "it was looked for in vain: the daemon's log says why"
        try:
            found = await self._exclude(*asked)
        except DiskError as error:
            found = str(error)
        finally:
            self._sought.discard(asked)
            self._found[asked] = time.monotonic(), found
            while len(self._found) > _ANSWERS:
                del self._found[next(iter(self._found))]

    async def _exclude(self, dataset: str, key: str, begin: int | None) -> tuple[int, int] | str:
        found: dict[str, tuple[UnitSlice, ...]] = {}
        for name in self._sides_of(dataset):
            listed = await asyncio.to_thread(self._indexes[name].find, key)
            if units := tuple(unit for unit in listed if begin in (None, unit.begin)):
                found[name] = units
        if not found:
            part = "" if begin is None else f" that begins at byte {begin}"
            return (
                f"the listing of {dataset} has no unit of the object {key!r}{part}; it has "
                f"{self._looked_through(dataset)}; a key is relative to the source's URL"
            )
        shards = 0
        for name, units in found.items():
            _log.info("unit excluded", dataset=name, key=for_the_log(key), begin=begin)
            shards += await self._take_out(name, units)
        await self._durable()
        return sum(map(len, found.values())), shards

    def _sides_of(self, dataset: str) -> list[str]:
        """Of a split both sides: what is taken out stays out of both, whatever is held out later."""
        kept_as = self._datasets[dataset].rules.excluded_as
        return [n for n, each in self._datasets.items() if each.rules.excluded_as == kept_as]

    def _looked_through(self, dataset: str) -> str:
        """What there is in its listing, and in that of a split's other side, for people."""
        told = []
        for name in sorted(self._sides_of(dataset), key=lambda name: name != dataset):
            index = self._indexes[name]
            more = "" if index.complete else ", and is still being made"
            other = "" if name == dataset else f"nor has that of {name}, with "
            told.append(f"{other}{len(index)} units{more}")
        return "; ".join(told)

    async def _durable(self) -> None:
        """A power failure does not bring back what somebody was answered."""
        while self._saver.behind:
            await asyncio.sleep(_POLL)
        self._catalog.sync()

    async def _take_out(self, dataset: str, units: tuple[UnitSlice, ...]) -> int:
        """In how many shards they are that were there before."""
        # First: what is published from here on, the policy looks at itself.
        self._feed(UnitsExcluded(dataset, units))
        while self._saver.behind:  # the rows of what was published before are not all there
            await asyncio.sleep(_POLL)
        state = self._datasets[dataset]
        holders = await self._holders(dataset, [u.unit for u in units], state.numbered_alike)
        names = frozenset(unit.name for unit in units)
        holders += await self._in_older(dataset, names)
        self._feed(HoldersFound(dataset, holders))
        return len(holders)

    async def _in_older(
        self, dataset: str, names: frozenset[UnitName], unknown: bool = True
    ) -> list[int]:
        """The shards of earlier listings that hold units of these names; with `unknown`, also all of which
        nobody knows what they hold."""
        state, holders = self._datasets[dataset], list[int]()
        for listing in {*state.listings.values()} - {self._indexes[dataset].id}:
            generations = [name for name, its in state.listings.items() if its == listing]
            if not any(generation in state.live.generations for generation in generations):
                continue
            numbers = await asyncio.to_thread(self._numbers, dataset, listing, names)
            if numbers is None:
                if not unknown:
                    continue
                holders += state.live.superseded(
                    *set(state.live.generations).difference(generations)
                ).tolist()
            else:
                holders += await self._holders(dataset, numbers, generations)
        return holders

    async def _holders(
        self, dataset: str, units: list[int], generations: Collection[str]
    ) -> list[int]:
        found: list[int] = []
        for some in self._catalog.holders(dataset, units, generations) if units else ():
            found += some
            await asyncio.sleep(0)  # others have their turn
        return found

    def _numbers(self, dataset: str, listing: str, names: frozenset[UnitName]) -> list[int] | None:
        """Which units of these names there are in a listing that was used before; None if it is lost."""
        index = Index.by_id(self._directory, dataset, listing)
        if index is None:
            return None
        try:
            return [u.unit for u in index.find(*{key for key, _ in names}) if u.name in names]
        finally:
            index.close()
