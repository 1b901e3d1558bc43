"""Which of the label's classes no record of the first lease has: a trainer would not see them, and may
not notice.

Looked for once a dataset's first lease after a start is granted, and then with each further one until
nothing is missing, in the shards that were not looked into before. Off the event loop, a shard at a time,
with pauses, and no further than to the last missing class: of units in a random order, that is a few
units for each class there is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from cachecd.catalog import Catalog
from cachecd.config import DatasetConfig
from cachecd.errors import DiskError
from cachecd.index import Index
from cachecd.model import Lease, ShardId
from cachecd.preflight import classes_of
from cachecd.sampler.sources.files import label_of
from cachecd.saving import PlanSaver

_POLL = 0.1  # seconds, while the catalog's disk refuses
_IDLE = 3.0  # times as long as a shard took: a quarter of one core at most
_MOST_UNITS = 1 << 19  # of one lease; 4 s of computing
_NAMED = 5

_log = structlog.get_logger("cachecd.daemon")


@dataclass(slots=True)
class _Search:
    """Of one dataset: the `missing` among `known` classes, None before the first lease; in which shards
    they were looked for, and in how many units."""

    missing: dict[str, None] | None = None  # in the order of their numbers
    known: int = 0
    shards: set[int] = field(default_factory=set)
    units: int = 0
    running: bool = False
    told: bool = False


class MissingClasses:
    """Watches the leases of all datasets that have labels."""

    def __init__(
        self,
        datasets: Mapping[str, DatasetConfig],
        catalog: Catalog,
        saver: PlanSaver,
        indexes: Mapping[str, Index],
        spawn: Callable[[Awaitable[None]], None],
    ) -> None:
        self._datasets = datasets
        self._catalog = catalog
        self._saver = saver
        self._indexes = indexes
        self._spawn = spawn
        labelled = (name for name, d in datasets.items() if d.source and d.source.label)
        self._searches = {name: _Search() for name in labelled}

    def status(self, dataset: str) -> dict[str, Any] | None:
        """What the leased records lack, as far as is known; None if that is nothing."""
        search = self._searches.get(dataset)
        if search is None or not search.told or not search.missing:
            return None
        return {
            "missing": len(search.missing),
            "of": search.known,
            "examples": list(search.missing)[:_NAMED],
            "units_looked_at": search.units,
        }

    def granted(self, lease: Lease, numbered_alike: bool) -> None:
        """A new lease has been granted; its units are those of the current listing, or of another."""
        search = self._searches.get(lease.dataset)
        if search is None or search.running or search.missing == {} or not numbered_alike:
            return
        search.running = True
        self._spawn(self._look(lease, search))

    async def _look(self, lease: Lease, search: _Search) -> None:
        try:
            if search.missing is None:
                known = classes_of(self._datasets[lease.dataset], self._indexes[lease.dataset])
                if not known:
                    return
                search.missing, search.known = dict.fromkeys(known), len(known)
            if await self._look_through(lease, search):
                self._tell(lease.dataset, search)
        except DiskError as error:  # with the next lease again
            _log.warning("classes not looked for", dataset=lease.dataset, why=str(error))
        except Exception:
            _log.exception("classes not looked for", dataset=lease.dataset)
        finally:
            search.running = False

    async def _look_through(self, lease: Lease, search: _Search) -> bool:
        """Whether that says anything: not of shards whose rows are lost."""
        numbers = [n for first, last in lease.shards for n in range(first, last + 1)]
        most = search.units + _MOST_UNITS
        for number in numbers:
            if number in search.shards:
                continue
            if not search.missing or search.units >= most:
                break
            while self._saver.behind:  # not every shard has its row
                await asyncio.sleep(_POLL)
            units, _ = self._catalog.held(ShardId(lease.dataset, number))
            if not len(units):
                return False
            began = time.monotonic()
            search.units += await asyncio.to_thread(
                self._find, lease.dataset, units.tolist(), search.missing
            )
            search.shards.add(number)
            await asyncio.sleep(_IDLE * (time.monotonic() - began))
        return True

    def _find(self, dataset: str, units: list[int], missing: dict[str, None]) -> int:
        """Takes the classes of these units out of the missing ones; how many it has looked at."""
        source, index = self._datasets[dataset].source, self._indexes[dataset]
        assert source is not None, "the configuration requires a source"
        for nth, number in enumerate(units, 1):
            unit = index.unit(number)
            missing.pop(label_of(source, unit.key, unit.label) or "", None)
            if not missing:
                return nth
        return len(units)

    def _tell(self, dataset: str, search: _Search) -> None:
        missing = list(search.missing or ())
        if not missing and search.told:
            _log.info("leased records have all classes", dataset=dataset, classes=search.known)
        if missing and not search.told:
            _log.warning(
                "leased records lack classes",
                dataset=dataset,
                missing=len(missing),
                of=search.known,
                examples=missing[:_NAMED],
                units_looked_at=search.units,
                do=_advice(self._indexes[dataset].complete, self._datasets[dataset].stratify),
            )
        search.told = True
        if not missing:
            search.shards.clear()


def _advice(listed: bool, stratify: bool) -> str:
    """What gives a first lease more classes."""
    ways = ["raise grow.first"] + ["set stratify: true"] * (not stratify)
    ways += ["begin when the listing has come to its end"] * (not listed)
    return ", or ".join(ways)
