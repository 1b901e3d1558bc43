"""The listing of a generation: lists the source repeatedly, and gives pages of units to streams. One
thread accesses the table."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import structlog

from cachecd.config import DatasetConfig
from cachecd.daemon.status import ListingStatus
from cachecd.disk.durable import read_json, write_json
from cachecd.errors import (
    ConfigError,
    DamagedError,
    DiskError,
    RewrittenError,
    SourceError,
    SourceUnreachableError,
)
from cachecd.listing.classes import ClassNames
from cachecd.listing.pages import Page, units_of
from cachecd.listing.source_pages import SourcePages
from cachecd.listing.table import Table
from cachecd.listing.table_update import Changes, Listing, UnusableListingError
from cachecd.model import Excluded, ObjectInfo, Place, Shape, Unit
from cachecd.policy import events as ev
from cachecd.policy.values import GenerationId
from cachecd.sampler.formats.files import label_of
from cachecd.stores.backend import LeftOut
from cachecd.units.selection import selection_of
from cachecd.units.source_units import Lister

_LONGEST_PAUSE = 60.0  # seconds between two attempts to list
# After this many failures in a row, about ten seconds, streams stop waiting for the first listing.
_PATIENCE = 5
_ROOM_POLL = 0.1  # seconds between two attempts to reserve space for a page
_ROOM_PATIENCE = 5.0  # seconds until the log says that a page waits for space

_log = structlog.get_logger("cachecd.listing")

Result = TypeVar("Result")


class GenerationListing:
    """The table of one generation. `is_first`: the first listing is running, so streams wait after the last
    listed unit. `classes`: the names of all classes, by number. `thread` opened the table."""

    def __init__(self, table: Table, thread: ThreadPoolExecutor) -> None:
        self.table, self.thread = table, thread
        self.is_first = table.completed == 0
        self.classes: tuple[str, ...] = ()

    @staticmethod
    async def open(path: Path, blocks: int = 0) -> GenerationListing:
        """Opens or creates listing.sqlite. DamagedError, also if it has fewer than `blocks` blocks.
        DiskError."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="listing")
        try:
            loop = asyncio.get_running_loop()
            table = await loop.run_in_executor(thread, Table, path, blocks)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return GenerationListing(table, thread)

    def listed(self, name: GenerationId, reason: str = "", doubted: bool = False) -> ev.Listed:
        """Returns the state of the listing, for the policy."""
        table = self.table
        counts = table.ends, len(table), table.num_bytes, self.is_first, table.completed
        return ev.Listed(name, *counts, reason, doubted)

    async def page(self, shape: Shape, stream: int, place: Place, excluded: Excluded) -> Page:
        """Returns the next units of a stream. Excluded units are None. DiskError."""
        table = self.table
        return await self.run(lambda: units_of(table, shape, stream, *place, excluded=excluded))

    async def units(self, numbers: Sequence[int]) -> list[Unit | None]:
        """Returns the units with these numbers, or None for a number that is not listed. DiskError."""

        def look_up() -> list[Unit | None]:
            listed = [number for number in numbers if number < len(self.table)]
            units = dict(zip(listed, self.table.units(listed), strict=True))
            return [units.get(number) for number in numbers]

        return await self.run(look_up)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Runs `work` in the thread of the table."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, work)

    async def close(self) -> None:
        """Closes the file after all work that was started."""
        await self.run(self.table.close)
        await asyncio.to_thread(self.thread.shutdown)


@dataclass(eq=False)
class ListingKeeper:
    """Lists the source of one configured generation until it succeeds, and then every `relist` seconds.
    After a failure, the listing continues where it stopped, if the store lists in order. Meanwhile,
    streams get the listed units.

    Every change of the listing is delivered as Listed, and then `changed` is called. `classes`: the path of
    the file of class numbers. The file must exist if `is_fed`: the streams of the generation have begun.
    `reserve` tries to reserve space for a page. Its arguments are the bytes of the page, the bytes by
    which the table grew for the previous page, and whether the page must fit. A page has at most
    `page_bytes`.

    `listed`: see SourcePages.

    `reason`: why the last attempt failed, or what it waits for, or "". `doubted`: the source seems to be
    another source. `rewritten`: how many units got another ETag, size or label since the start. `objects`
    and `left_out`: the objects that this attempt has listed and omitted so far. `ended`: when the last
    listing ended, by the monotonic clock, or 0.
    """

    name: GenerationId
    config: DatasetConfig
    listing: GenerationListing
    lister: Lister
    classes: Path
    is_fed: bool
    reserve: Callable[[int, int, bool], bool]
    page_bytes: Callable[[], int]
    deliver: Callable[[ev.Event], None]
    changed: Callable[[], None]
    listed: Callable[[float, float, int], None] = lambda cpu_s, began, units: None
    reason: str = ""
    doubted: bool = False
    rewritten: int = 0
    objects: int = 0
    left_out: LeftOut = field(default_factory=LeftOut)
    ended: float = 0.0
    _labels: set[str] = field(default_factory=set)

    async def keep(self) -> None:
        """Lists the source repeatedly. Returns after the first listing if `relist` is not set."""
        await self.load_classes()
        longest, judges = _LONGEST_PAUSE, True
        while True:
            began = time.monotonic()
            changes = await self._until_listed(judges, longest)
            self.ended = time.monotonic()
            took = self.ended - began
            self.rewritten += changes.rewritten
            _log.info(
                "source listed",
                dataset=self.name.dataset,
                units=len(self.listing.table),
                new=changes.new,
                rewritten=changes.rewritten,
                gone=len(changes.gone),
                left_out=str(self.left_out) or "nothing",
                took_s=round(took, 1),
            )
            if self.left_out.warning:
                _log.warning("deleted rows", dataset=self.name.dataset, why=self.left_out.warning)
            if self.config.relist is None:
                return
            judges, longest = False, max(self.config.relist, _LONGEST_PAUSE)
            await asyncio.sleep(max(self.config.relist - took, took))

    def report(self) -> None:
        """Delivers the state of the listing to the policy."""
        self.deliver(self.listing.listed(self.name, self.reason, self.doubted))
        self.changed()

    def status(self) -> ListingStatus:
        """Returns the listing's part of the status document."""
        ago = round(time.monotonic() - self.ended, 1) if self.ended else None
        left_out = str(self.left_out), self.left_out.warning
        return ListingStatus(self.objects, ago, self.reason, *left_out)

    async def load_classes(self) -> None:
        """Reads the numbers of the known classes. DiskError, DamagedError."""
        source = self.config.source
        if not source.awaits_classes:
            self.listing.classes = source.classes
        else:
            remedy = f". Restore it, or remove {self.classes.parent}"
            known = await asyncio.to_thread(
                read_json, self.classes, ClassNames.from_content, remedy
            )
            if known is None and self.is_fed:
                raise DamagedError(f"{self.classes} is missing{remedy}")
            self.listing.classes = known.names if known is not None else ()

    async def _until_listed(self, judges: bool, longest: float) -> Changes:
        """`longest`: the maximum of seconds between two attempts."""
        failures = 0
        pages = SourcePages(self.lister, self.config.source, self.listed)
        listing = self._begin(judges)
        try:
            while True:
                length = len(self.listing.table)
                try:
                    changes = await listing.read(self._units(pages))
                    await self._number_classes()
                except Exception as error:
                    if not pages.can_continue or isinstance(
                        error, (RewrittenError, UnusableListingError)
                    ):
                        pages, listing = pages.restarted(), self._begin(judges)
                    failures = failures + 1 if len(self.listing.table) == length else 1
                    await asyncio.sleep(self._failed(error, failures, longest))
                else:
                    self.reason, self.doubted, self.listing.is_first = "", False, False
                    self.report()
                    return changes
        finally:
            pages.close()

    def _begin(self, judges: bool) -> Listing:
        self._labels.clear()
        self.objects = 0
        table, thread = self.listing.table, self.listing.thread
        return Listing(table, thread, self._reserve, self.page_bytes, judges, self.report)

    async def _reserve(self, size: int, grown: int, must_fit: bool) -> bool:
        """Reserves space for a page: see Listing."""
        began, is_waiting = time.monotonic(), False
        while not self.reserve(size, grown, must_fit):
            if not must_fit:
                return False
            if not is_waiting and time.monotonic() - began > _ROOM_PATIENCE:
                is_waiting = True
                self.reason = (
                    f"the listing waits for {size} bytes under cache.limit: shards are retired when the "
                    "next epoch begins, and deleted when leases end. If listings take half of the limit, "
                    "raise it"
                )
                _log.warning("listing waits for space", dataset=self.name.dataset, why=self.reason)
                self.report()
            await asyncio.sleep(_ROOM_POLL)
        if is_waiting:
            self.reason = ""
            self.report()
        return True

    def _failed(self, error: Exception, failures: int, longest: float) -> float:
        """Reports a failure. Returns the seconds until the next attempt."""
        expected = (SourceError, DiskError, ConfigError)
        if not isinstance(error, expected):
            # The library of a store may raise any error. Treat it as a temporary failure of the store.
            _log.exception("listing failed unexpectedly", dataset=self.name.dataset)
            error = SourceUnreachableError(f"{type(error).__name__}: {error}")
        pause = random.uniform(0, min(2.0 ** min(failures, 30), longest))
        self.doubted = isinstance(error, RewrittenError)
        self.reason = str(error)
        if self.doubted:
            pause = _LONGEST_PAUSE  # each attempt lists the whole source
            self.reason = (
                f"{self.config.source.url}: {error}: this seems to be another store than before, and "
                "nothing is fetched from it. Is the endpoint right? If the objects were rewritten on "
                f"purpose, set generation: {self.config.generation + 1}"
            )
        elif not self.config.source.awaits_classes and (
            isinstance(error, ConfigError) or failures >= _PATIENCE
        ):
            self.listing.is_first = False
        _log.warning(
            "source not listed",
            dataset=self.name.dataset,
            why=self.reason,
            units=len(self.listing.table),
            again_in_s=round(pause, 1),
        )
        self.report()
        return pause

    async def _units(self, pages: SourcePages) -> AsyncIterator[Sequence[ObjectInfo]]:
        """Yields the units that the dataset selects. Collects the class names of the pages."""
        source, takes = self.config.source, selection_of(self.config)
        self.left_out = pages.left_out
        async for page in pages.read():
            if source.awaits_classes:
                labels = (label_of(source, unit.key, unit.label) for unit in page)
                self._labels.update(label for label in labels if label is not None)
            yield page if takes is None else [unit for unit in page if takes(unit)]
            self.objects += len(page)

    async def _number_classes(self) -> None:
        """Numbers the new classes durably. DiskError."""
        if self.config.source.awaits_classes:
            names = ClassNames(self.listing.classes)
            extended = names.extended(self._labels)
            if extended is not names or not self.classes.exists():
                await asyncio.to_thread(write_json, self.classes, extended.content())
                self.listing.classes = extended.names
