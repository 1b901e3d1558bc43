"""Listing a source by several requests at a time: the same index, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachecd.errors import SourceUnreachableError
from cachecd.model import ObjectInfo
from cachecd.sampler.lanes import Ask, Lanes, Page
from cachecd.sampler.sweep import Sweep
from tests.test_listing import Source, objects, one_by_one


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Callable[[], Source]]:
    yield from one_by_one(Source, tmp_path)


class Laned:
    """Lists from any key, folder by folder if `folders`; requests after the first `answered` fail."""

    def __init__(self, found: list[ObjectInfo], answered: int = 1 << 60, folders: bool = False):
        self.found = sorted(found, key=lambda o: o.key.split("/") if folders else o.key)
        self.answered, self.folders = answered, folders
        self.asked: list[Ask] = []

    def page(self, ask: Ask) -> Page:
        self.asked.append(ask)
        if len(self.asked) > self.answered:
            raise SourceUnreachableError("the store fell silent")
        there = [o for o in self.found if self._place(o.key) > self._place(ask.after)]
        return Page(there[: ask.most], len(there) > ask.most)

    def _place(self, key: str) -> object:
        return (key.split("/") if key else []) if self.folders else key

    def sweep(self, lanes: Lanes) -> Sweep:
        return Sweep(self.page, lanes, "s3://b/", 4)

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        yield [o for o in self.found if self._place(o.key) > self._place(start_after)]


@pytest.mark.parametrize("killed", [False, True])
def test_wherever_several_requests_were_interrupted_the_index_is_the_same_and_none_is_in_vain(
    source, killed
):
    one, whole = source(), Laned(objects(5000))
    asyncio.run(one.listing().go_on(whole.list, whole.sweep))
    assert sorted(one.keys()) == sorted(o.key for o in objects(5000))
    assert len({key.split("/")[0] for key in one.keys()[:1000]}) > 4
    expected = one.keys()
    for answered in (0, 25, 40):
        Path(one.index.path).unlink()
        one, store = source(), Laned(objects(5000), answered)
        listing = one.listing()
        with pytest.raises(SourceUnreachableError):
            asyncio.run(listing.go_on(store.list, store.sweep))
        there, store.answered = len(one.index), 1 << 60
        if killed:
            one = source()
            listing = one.listing()
        asked = len(store.asked)
        asyncio.run(listing.go_on(store.list, store.sweep))
        assert one.keys() == expected
        assert ("" in [ask.after for ask in store.asked[asked:]]) == (there == 0)


def test_a_store_that_lists_folder_by_folder_is_listed_by_one_request_at_a_time(source):
    found = [ObjectInfo(f"{name}/{n:05d}", 1) for name in ("a", "a-b") for n in range(3000)]
    one, store = source(), Laned(found, folders=True)
    asyncio.run(one.listing().go_on(store.list, store.sweep))
    assert sorted(one.keys()) == sorted(o.key for o in found)
    assert one.index.complete
