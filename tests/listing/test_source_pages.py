"""Pages over several attempts, by several requests at a time and one by one."""

from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_right
from collections.abc import Generator

import pytest

from cachecd.config import SourceConfig
from cachecd.errors import SourceUnreachableError
from cachecd.listing.source_pages import SourcePages
from cachecd.listing.table_update import UnusableListingError
from cachecd.model import ObjectInfo
from cachecd.stores.lanes import Ask, Lanes, Page
from cachecd.stores.sweep import Sweep
from tests.listing.sources import units

OBJECTS = units(0, 5000)
KEYS = [one.key for one in OBJECTS]
SOURCE = SourceConfig.model_validate({"url": "s3://b/", "format": "files"})


class Store:
    """Answers so many requests, and fails then. `lanes`: it can be listed by several requests at a time."""

    def __init__(self, answers: int, lanes: bool = True, folder_order: bool = False) -> None:
        self.answers, self.lanes, self.folder_order = answers, lanes, folder_order
        self.asked = 0

    def sweep(self, source: SourceConfig, lanes: Lanes) -> Sweep | None:
        return Sweep(self._page, lanes, "s3://b/", 4) if self.lanes else None

    def units(
        self, source: SourceConfig, after: str = ""
    ) -> Generator[list[ObjectInfo], None, None]:
        begin = bisect_right(KEYS, after) if after else 0
        for start in range(begin, len(OBJECTS), 500):
            self._count()
            yield OBJECTS[start : start + 500]

    def _page(self, ask: Ask) -> Page:
        self._count()
        begin = bisect_right(KEYS, ask.after) if ask.after and not self.folder_order else 0
        return Page(OBJECTS[begin : begin + ask.most], begin + ask.most < len(OBJECTS))

    def _count(self) -> None:
        self.asked += 1
        if self.asked > self.answers:
            raise SourceUnreachableError("the store is down")


def read(pages: SourcePages, most: int = 1 << 30) -> list[ObjectInfo]:
    """All units of one attempt, or of so many pages."""

    async def run() -> list[ObjectInfo]:
        found: list[ObjectInfo] = []
        count = 0
        async for page in pages.read():
            found += page
            if (count := count + 1) == most:
                break
        return found

    return asyncio.run(run())


@pytest.mark.parametrize("lanes", [True, False])
@pytest.mark.parametrize("answers", [0, 1, 4, 9])
def test_second_attempt_continues_where_the_first_one_failed(lanes, answers):
    store = Store(answers, lanes)
    pages = SourcePages(store, SOURCE)
    first: list[ObjectInfo] = []

    async def attempt() -> None:
        async for page in pages.read():
            first.extend(page)

    with pytest.raises(SourceUnreachableError, match="down"):
        asyncio.run(attempt())
    assert pages.goes_on
    assert len(first) < len(OBJECTS)
    store.answers = 1 << 30
    found = first + read(pages)
    assert found == read(SourcePages(Store(1 << 30, lanes), SOURCE)), "the same order"
    assert sorted(one.key for one in found) == KEYS
    assert read(pages) == []


def test_store_whose_order_is_another_is_listed_by_one_request_at_a_time():
    pages = SourcePages(Store(1 << 30, folder_order=True), SOURCE)
    with pytest.raises(SourceUnreachableError, match="one request at a time"):
        read(pages)
    assert not pages.goes_on
    assert read(pages.anew()) == OBJECTS


def test_store_that_lists_a_page_again_and_again_is_found_out(monkeypatch):
    store = Store(1 << 30, lanes=False)
    monkeypatch.setattr(store, "units", lambda *_: itertools.repeat(OBJECTS[:500]))
    with pytest.raises(UnusableListingError, match="the same page twice in a row"):
        read(SourcePages(store, SOURCE))
