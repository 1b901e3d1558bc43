"""Listings of a source: the first and later listings, failures, classes, and room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from cachecd.config import DatasetConfig, SourceConfig
from cachecd.daemon import listings
from cachecd.daemon.listings import GenerationListing, ListingKeeper
from cachecd.errors import SourceUnreachableError
from cachecd.model import ObjectInfo
from cachecd.stores.backend import LeftOut
from cachecd.stores.key_ranges import Lanes
from tests.daemon.directories import NAME
from tests.listing.sources import units


class Bench:
    """A listing of a scripted source: `script` has the units of the source, and errors where the store
    fails. `asked`: the key behind which each attempt listed."""

    def __init__(self, listing: GenerationListing, folder: Any, **config: Any) -> None:
        source = {"url": "file:///src", "format": "files", **config.pop("source", {})}
        self.listing = listing
        self.script: list[list[ObjectInfo] | Exception] = []
        self.events: list[Any] = []
        self.refuses = False
        self.wakes = 0
        self.asked: list[str] = []
        self.ordered = True
        self.keeper = ListingKeeper(
            *(NAME, DatasetConfig.model_validate({"source": source, **config}), listing),
            *(self, folder / "classes.json", False, self._reserve, lambda: 1 << 30),
            *(self._deliver, self._changed),
        )

    def _reserve(self, size: int, grown: int, must_fit: bool) -> bool:
        return not self.refuses

    def _deliver(self, event: Any) -> None:
        self.events.append(event)

    def _changed(self) -> None:
        self.wakes += 1

    def sweep(self, source: SourceConfig, lanes: Lanes, left_out: LeftOut) -> None:
        """The store has one lane."""

    def units(
        self, source: SourceConfig, after: str, left_out: LeftOut
    ) -> Generator[list[ObjectInfo], None, None]:
        """Lists the next entry of the script up to the error behind it, if there is one."""
        self.asked.append(after)
        found = self.script.pop(0)
        if isinstance(found, Exception):
            raise found
        found = [unit for unit in found if unit.key > after or not self.ordered]
        for at in range(0, len(found), 1000):
            yield found[at : at + 1000]
        if self.script and isinstance(self.script[0], Exception):
            raise self.script.pop(0)


@pytest.fixture
def opened(tmp_path, monkeypatch) -> Callable[..., AbstractAsyncContextManager[Bench]]:
    """Opens a bench of a dataset with this configuration."""
    monkeypatch.setattr("random.uniform", lambda low, high: min(high, 0.001))

    @asynccontextmanager
    async def open_it(**config: Any) -> AsyncIterator[Bench]:
        listing = await GenerationListing.open(tmp_path / "listing.sqlite")
        try:
            yield Bench(listing, tmp_path, **config)
        finally:
            await listing.close()

    return open_it


@pytest.fixture
def bench(opened) -> AbstractAsyncContextManager[Bench]:
    return opened()


async def test_first_listing_reports_each_block_and_its_end(bench):
    assert bench.listing.is_first
    bench.script = [units(0, 2000)]
    await bench.keeper.keep()
    assert not bench.listing.is_first
    firsts = [event.first for event in bench.events]
    assert firsts == [True] * (len(firsts) - 1) + [False]
    assert len(firsts) > 2
    last = bench.events[-1]
    assert (last.ends, last.units, last.completed) == ((256, 768, 1792, 2000), 2000, 1)
    assert (last.size, last.reason, last.doubted) == (200_000, "", False)
    assert bench.wakes == len(bench.events)


async def test_failure_is_reported_and_retried(bench):
    bench.script = [units(0, 1000), SourceUnreachableError("down"), units(0, 1500)]
    await bench.keeper.keep()
    failed = next(event for event in bench.events if event.reason)
    assert (failed.reason, failed.first, failed.ends[-1]) == ("down", True, 1000)
    assert (bench.events[-1].units, bench.events[-1].reason) == (1500, "")
    last_complete = units(998, 999)[
        0
    ].key  # a page may end between two units of the object behind it
    assert bench.asked == ["", last_complete], "it continued where it was"


async def test_store_without_an_order_is_listed_from_the_beginning(bench):
    bench.ordered = False
    backwards = [*reversed(units(0, 1500))]
    bench.script = [backwards[:1000], SourceUnreachableError("down"), backwards]
    await bench.keeper.keep()
    assert bench.asked == ["", ""]
    assert (bench.events[-1].units, bench.events[-1].reason) == (1500, "")


async def test_streams_stop_waiting_for_an_unreachable_source(bench):
    bench.script = [
        units(0, 300),
        *(SourceUnreachableError("down") for _ in range(7)),
        units(0, 300),
    ]
    await bench.keeper.keep()
    down = [event.first for event in bench.events if event.reason]
    assert down == [True] * (len(down) - 3) + [False] * 3


async def test_library_error_is_a_source_error(bench):
    bench.script = [ZeroDivisionError("odd"), units(0, 300)]
    await bench.keeper.keep()
    assert "ZeroDivisionError: odd" in next(e.reason for e in bench.events if e.reason)
    assert (bench.events[-1].units, bench.events[-1].reason) == (300, "")


async def test_page_waits_for_room(bench, monkeypatch):
    monkeypatch.setattr(listings, "_ROOM_PATIENCE", 0.0)
    bench.script = [units(0, 300)]
    bench.refuses = True
    keeping = asyncio.ensure_future(bench.keeper.keep())
    async with asyncio.timeout(10):
        while not any(event.reason for event in bench.events):
            await asyncio.sleep(0.001)
    assert "waits for" in bench.events[-1].reason
    assert len(bench.listing.table) == 0
    bench.refuses = False
    await keeping
    assert (bench.events[-1].units, bench.events[-1].reason) == (300, "")
    assert len(bench.asked) == 1, "the listing waits where it is"


async def test_rewritten_source_is_doubted_until_it_is_restored(bench, monkeypatch):
    monkeypatch.setattr(listings, "_LONGEST_PAUSE", 0.001)
    bench.script = [units(0, 1000)]
    await bench.keeper.keep()
    bench.events.clear()
    bench.script = [units(0, 1000, "other"), units(0, 1000)]
    await bench.keeper.keep()
    assert [event.doubted for event in bench.events] == [True, False]
    assert "generation: 2" in bench.events[0].reason
    [unit] = await bench.listing.units([5])
    assert unit is not None
    assert unit.etag == "e"


async def test_source_is_listed_again_every_relist_seconds(opened):
    async with opened(relist="50ms") as bench:
        bench.script = [units(0, 300), units(0, 400), units(0, 500)]
        keeping = asyncio.ensure_future(bench.keeper.keep())
        async with asyncio.timeout(10):
            while bench.listing.table.completed < 3:
                await asyncio.sleep(0.001)
        keeping.cancel()
        assert len(bench.listing.table) == 500
        firsts = [event.first for event in bench.events]
        assert firsts == sorted(firsts, reverse=True), "later listings make no stream wait"
        assert not firsts[-1]


async def test_classes_are_numbered_at_the_end_and_keep_their_numbers(opened):
    async with opened(source={"label": {"pattern": "^([^/]+)/"}}) as bench:
        bench.script = [[ObjectInfo(f"{name}/x", 1, "e") for name in ("dog", "cat")]]
        await bench.keeper.keep()
        assert bench.listing.classes == ("cat", "dog")
        bench.listing.classes = ()
        bench.script = [[ObjectInfo(f"{name}/x", 1, "e") for name in ("dog", "cat", "ant")]]
        await bench.keeper.keep()
        assert bench.listing.classes == ("cat", "dog", "ant")
