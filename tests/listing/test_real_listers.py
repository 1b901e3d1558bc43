"""Listings through the listers that exist: a store's own listing, and several requests at a time."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing

import pytest

from cachecd.config import SourceConfig
from cachecd.errors import SourceUnreachableError
from cachecd.executors.lister import Lister
from cachecd.listing.table_update import Listing
from cachecd.model import ObjectInfo
from cachecd.stores.lanes import Ask, Lanes, Page
from cachecd.stores.sweep import Sweep
from tests.listing.sources import Source, units

OBJECTS = units(0, 5000)
KEYS = [one.key for one in OBJECTS]


async def aside(
    read: Callable[[], Sequence[ObjectInfo] | None],
) -> AsyncIterator[Sequence[ObjectInfo]]:
    while (page := await asyncio.to_thread(read)) is not None:
        yield page


def pages_of(found: Iterator[list[ObjectInfo]]) -> AsyncIterator[Sequence[ObjectInfo]]:
    return aside(lambda: next(found, None))


def list_through(listing: Listing, answered: int, lanes: Lanes) -> None:
    """By several requests at a time; the store fails after so many."""
    with closing(Sweep(store(answered), lanes, "s3://b/", 4)) as sweep:
        asyncio.run(listing.read(aside(sweep.next)))


def store(answered: int) -> Callable[[Ask], Page]:
    """Answers so many requests, and fails then."""
    asked = []

    def page(ask: Ask) -> Page:
        asked.append(ask)
        if len(asked) > answered:
            raise SourceUnreachableError("the store is down")
        begin = bisect_right(KEYS, ask.after) if ask.after else 0
        return Page(OBJECTS[begin : begin + ask.most], begin + ask.most < len(OBJECTS))

    return page


@pytest.fixture
def source(tmp_path):
    with Source(tmp_path / "listing.sqlite") as source:
        yield source


def numbered(source):
    return [
        one.key
        for n in range(0, len(source.table), 1000)
        for one in source.units(range(n, min(n + 1000, len(source.table))))
    ]


def test_directory_is_listed(source, tmp_path):
    (tmp_path / "data").mkdir()
    for one in OBJECTS[:30]:
        (tmp_path / "data" / one.key.replace("/", "-")).write_bytes(b"x")
    config = SourceConfig.model_validate({"url": f"file://{tmp_path}/data/", "format": "files"})
    lister = Lister(4)
    for new in (30, 0):
        found = asyncio.run(source.listing().read(pages_of(lister.units(config))))
        assert (found.new, found.rewritten, len(found.gone)) == (new, 0, 0)
    assert numbered(source) == sorted(key.replace("/", "-") for key in KEYS[:30])


def test_interrupted_requests_give_the_same_numbers(tmp_path):
    orders = []
    for name, answered in (("whole", 1 << 30), ("cut", 25), ("early", 3)):
        with Source(tmp_path / name) as source:
            lanes, listing = Lanes(), source.listing()
            try:
                list_through(listing, answered, lanes)
            except SourceUnreachableError:
                assert name != "whole"
                assert len(source.table) < len(OBJECTS)
                list_through(listing, 1 << 30, lanes)
            assert source.table.completed == 1
            orders.append(numbered(source))
    assert sorted(orders[0]) == KEYS
    assert orders[0] == orders[1] == orders[2]
    assert len({key.split("/")[0] for key in orders[0][:1000]}) > 4, "from many places at once"
