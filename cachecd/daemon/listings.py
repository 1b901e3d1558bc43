"""The listing of a generation, in the thread of its table: pages for feeding, and keeping it current."""

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

_LONGEST_PAUSE = 60.0  # a source that is back is found within a minute
# After so many failures in a row, some ten seconds, streams no longer wait for the first listing.
_PATIENCE = 5
_ROOM_POLL, _ROOM_PATIENCE = 0.1, 5.0  # seconds: until the log says that a page waits for room

_log = structlog.get_logger("cachecd.listing")

Result = TypeVar("Result")


class GenerationListing:
    """The table of one generation. `is_first`: the first listing is running, so streams wait at the end of
    the listed units. `classes`: the names of all classes, by number."""

    def __init__(self, table: Table, thread: ThreadPoolExecutor) -> None:
        """`thread` made the table."""
        self.table, self.thread = table, thread
        self.is_first = table.completed == 0
        self.classes: tuple[str, ...] = ()

    @staticmethod
    async def open(path: Path, blocks: int = 0) -> GenerationListing:
        """Opens or creates listing.sqlite. DiskError. DamagedError also if it has fewer than `blocks`
        blocks."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="listing")
        try:
            loop = asyncio.get_running_loop()
            table = await loop.run_in_executor(thread, Table, path, blocks)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return GenerationListing(table, thread)

    def listed(self, name: GenerationId, reason: str = "", doubted: bool = False) -> ev.Listed:
        """The state of the listing, for the policy."""
        ends, size = self.table.ends, self.table.num_bytes
        counts = ends, len(self.table), size, self.is_first, self.table.completed
        return ev.Listed(name, *counts, reason, doubted)

    async def page(self, shape: Shape, stream: int, place: Place, excluded: Excluded) -> Page:
        """The next units of a stream, without what is excluded. DiskError."""
        return await self.run(
            lambda: units_of(self.table, shape, stream, *place, excluded=excluded)
        )

    async def units(self, numbers: Sequence[int]) -> list[Unit | None]:
        """Units by number; None for a number that is not listed. DiskError."""

        def look_up() -> list[Unit | None]:
            listed = [number for number in numbers if number < len(self.table)]
            units = dict(zip(listed, self.table.units(listed), strict=True))
            return [units.get(number) for number in numbers]

        return await self.run(look_up)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Does work on the table in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, work)

    async def close(self) -> None:
        """Closes the file after all work that was begun."""
        await self.run(self.table.close)
        await asyncio.to_thread(self.thread.shutdown)


@dataclass(eq=False)
class ListingKeeper:
    """Keeps the listing of one configured generation current: lists until that succeeds, then again every
    `relist` seconds. After a failure the listing continues where it stopped, if the store has an order. The
    listed units are fed meanwhile.

    Every change of the listing is delivered as Listed, and then `changed` is called. `classes`: the path of
    the file of class numbers, which exists if the generation `is_fed`: its streams have begun. `reserve`
    reserves room for a page, if there is any, given the bytes of this page and those that the page before
    took; a page takes at most `page_bytes`. `reason`: why the last attempt failed, or what it waits for, or
    "". `rewritten`: units with a new ETag, size or label since the start. `objects`: how many objects this
    attempt has listed; `left_out`: what it left out. `ended`: when the last listing ended, by the monotonic
    clock; 0 if none has.
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
    reason: str = ""
    doubted: bool = False
    rewritten: int = 0
    objects: int = 0
    left_out: LeftOut = field(default_factory=LeftOut)
    ended: float = 0.0
    _labels: set[str] = field(default_factory=set)

    async def keep(self) -> None:
        """Lists repeatedly; returns if no further listing is due."""
        await self.load_classes()
        longest = _LONGEST_PAUSE
        judges = True
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
        """Delivers the state of the listing."""
        self.deliver(self.listing.listed(self.name, self.reason, self.doubted))
        self.changed()

    def status(self) -> ListingStatus:
        """Returns the figures for the status document."""
        ago = round(time.monotonic() - self.ended, 1) if self.ended else None
        left_out = str(self.left_out), self.left_out.warning
        return ListingStatus(self.objects, ago, self.reason, *left_out)

    async def load_classes(self) -> None:
        """Reads the class numbers that are known. DiskError, DamagedError."""
        source = self.config.source
        if not source.awaits_classes:
            self.listing.classes = source.classes
        else:
            remedy = f". Restore it, or remove {self.classes.parent}"
            known = await asyncio.to_thread(read_json, self.classes, ClassNames.of, remedy)
            if known is None and self.is_fed:
                raise DamagedError(f"{self.classes} is missing{remedy}")
            self.listing.classes = known.names if known is not None else ()

    async def _until_listed(self, judges: bool, longest: float) -> Changes:
        """`longest`: the most seconds between two attempts."""
        failures = 0
        pages = SourcePages(self.lister, self.config.source)
        listing = self._begin(judges)
        try:
            while True:
                length = len(self.listing.table)
                try:
                    changes = await listing.read(self._units(pages))
                    await self._number_classes()
                except Exception as error:
                    if not pages.goes_on or isinstance(
                        error, (RewrittenError, UnusableListingError)
                    ):
                        pages, listing = pages.anew(), self._begin(judges)
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
        """Reserves room for a page, as of Listing."""
        began, is_waiting = time.monotonic(), False
        while not self.reserve(size, grown, must_fit):
            if not must_fit:
                return False
            if not is_waiting and time.monotonic() - began > _ROOM_PATIENCE:
                is_waiting = True
                self.reason = (
                    f"the listing waits for {size} bytes under cache.limit: shards make room when the next "
                    "epoch begins and leases end. If listings take half of the limit, raise it"
                )
                _log.warning("listing waits for room", dataset=self.name.dataset, why=self.reason)
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
            # Whatever a store's library raises is that store's trouble, and may pass.
            _log.exception("listing failed unexpectedly", dataset=self.name.dataset)
            error = SourceUnreachableError(f"{type(error).__name__}: {error}")
        pause = random.uniform(0, min(2.0 ** min(failures, 30), longest))
        self.doubted = isinstance(error, RewrittenError)
        self.reason = str(error)
        if self.doubted:
            pause = _LONGEST_PAUSE  # each attempt takes a whole listing
            self.reason = (
                f"{self.config.source.url}: {error}: this seems to be another store than before, and "
                "nothing is fetched from it. Is the endpoint right? If the objects were rewritten on "
                f"purpose, set generation: {self.config.generation + 1}"
            )
        elif not self.config.source.awaits_classes:
            hopeless = isinstance(error, ConfigError) or failures >= _PATIENCE
            self.listing.is_first = self.listing.is_first and not hopeless
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
        """Yields the units that the dataset takes. Collects the class names of the pages."""
        source, takes = self.config.source, selection_of(self.config)
        self.left_out = pages.left_out
        async for page in pages.read():
            if source.awaits_classes:
                labels = (label_of(source, unit.key, unit.label) for unit in page)
                self._labels.update(label for label in labels if label is not None)
            yield page if takes is None else [unit for unit in page if takes(unit)]
            self.objects += len(page)

    async def _number_classes(self) -> None:
        """Numbers the new classes, durably. DiskError."""
        if self.config.source.awaits_classes:
            names = ClassNames(self.listing.classes)
            extended = names.extended(self._labels)
            if extended is not names or not self.classes.exists():
                await asyncio.to_thread(write_json, self.classes, extended.content())
                self.listing.classes = extended.names
