"""Pages over several attempts, by several requests at a time and one by one."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
from bisect import bisect_right
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.config import SourceConfig
from cachecd.errors import SourceUnreachableError
from cachecd.executors.lister import ProcessLister
from cachecd.listing.source_pages import SourcePages
from cachecd.listing.table_update import UnusableListingError
from cachecd.model import ObjectInfo, encoded
from cachecd.stores.backend import LeftOut
from cachecd.stores.key_ranges import Ask, KeyPage, Lanes
from cachecd.stores.sweep import ListingSweep
from tests.core.processes import until
from tests.listing.sources import units

OBJECTS = units(0, 5000)
KEYS = [one.key for one in OBJECTS]
SOURCE = SourceConfig.model_validate({"url": "s3://b/", "format": "files"})


class Store:
    """Answers so many requests, and fails then. `lanes`: it can be listed by several requests at a time."""

    def __init__(self, answers: int, lanes: bool = True, folder_order: bool = False) -> None:
        self.answers, self.lanes, self.folder_order = answers, lanes, folder_order
        self.asked = 0

    def sweep(self, source: SourceConfig, lanes: Lanes, left_out: LeftOut) -> ListingSweep | None:
        return ListingSweep(self._page, lanes, "s3://b/", 4) if self.lanes else None

    def units(
        self, source: SourceConfig, after: str = "", left_out: LeftOut | None = None
    ) -> Generator[list[ObjectInfo], None, None]:
        begin = bisect_right(KEYS, after) if after else 0
        for start in range(begin, len(OBJECTS), 500):
            self._count()
            yield OBJECTS[start : start + 500]

    def _page(self, ask: Ask) -> KeyPage:
        self._count()
        begin = bisect_right(KEYS, ask.after) if ask.after and not self.folder_order else 0
        return KeyPage(OBJECTS[begin : begin + ask.most], begin + ask.most < len(OBJECTS))

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
    assert pages.can_continue
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
    assert not pages.can_continue
    assert read(pages.restarted()) == OBJECTS


def test_store_that_lists_a_page_again_and_again_is_found_out(monkeypatch):
    store = Store(1 << 30, lanes=False)
    monkeypatch.setattr(store, "units", lambda *_: itertools.repeat(OBJECTS[:500]))
    with pytest.raises(UnusableListingError, match="the same page twice in a row"):
        read(SourcePages(store, SOURCE))


def listing_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "listing"]


@pytest.mark.parametrize("lanes", [True, False])
def test_listing_reads_ahead_in_one_thread_that_ends_with_it(lanes):
    store = Store(1 << 30, lanes)
    before = set(listing_threads())
    pages = SourcePages(store, SOURCE)

    async def run() -> None:
        async for _ in pages.read():
            assert len(set(listing_threads()) - before) <= 1

    asyncio.run(run())
    until(lambda: set(listing_threads()) <= before)


def test_listing_that_nobody_reads_on_stops_and_ends_when_closed():
    listed = []

    class Endless(Store):
        def units(self, *_: Any) -> Generator[list[ObjectInfo], None, None]:
            for number in itertools.count():
                listed.append(number)
                yield units(number, number + 1)

    before = set(listing_threads())
    pages = SourcePages(Endless(1 << 30, lanes=False), SOURCE)

    async def run() -> None:
        async for _ in pages.read():
            break

    asyncio.run(run())
    [thread] = set(listing_threads()) - before
    until(lambda: len(listed) >= 4)
    thread.join(0.1)
    assert thread.is_alive()
    assert len(listed) <= 1 + 2 * 5, "at most as many pages as were taken, and those ahead"
    pages.close()
    thread.join(20)
    assert not thread.is_alive()


def test_store_that_hangs_keeps_no_process_from_ending():
    code = (
        "import asyncio, time\n"
        "from tests.listing.test_source_pages import SOURCE, SourcePages, Store\n"
        "class Hanging(Store):\n"
        "    def units(self, *_): time.sleep(600); yield []\n"
        "async def main():\n"
        "    pages = SourcePages(Hanging(1, lanes=False), SOURCE)\n"
        "    try: await asyncio.wait_for(anext(pages.read()), 0.2)\n"
        "    except TimeoutError: print('waited')\n"
        "    pages.close()\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", code], cwd=root, timeout=120, capture_output=True)
    assert (ended.returncode, ended.stdout) == (0, b"waited\n"), ended.stderr


class Broken:
    """Lists units in pages of the given sizes. `fails`: after how many pages each attempt fails; the next
    attempt succeeds."""

    def __init__(self, listed: list[ObjectInfo], sizes: list[int], fails: list[int]) -> None:
        self.listed, self.sizes, self.fails = listed, itertools.cycle(sizes), fails

    def sweep(self, source: SourceConfig, lanes: Lanes, left_out: LeftOut) -> None:
        """The store has one lane."""

    def units(
        self, source: SourceConfig, after: str = "", left_out: LeftOut | None = None
    ) -> Generator[list[ObjectInfo], None, None]:
        left = [one for one in self.listed if encoded(one.key) > encoded(after)]
        pages = self.fails.pop(0) if self.fails else len(left)
        for _ in range(pages):
            size = next(self.sizes)
            if left:
                yield left[:size]
            left = left[size:]
        if left:
            raise SourceUnreachableError("the store is down")


def read_all(pages: SourcePages) -> tuple[list[ObjectInfo], int]:
    """The units of a whole listing, which starts again if it cannot continue, and the number of its
    attempts."""
    listed: list[ObjectInfo] = []

    async def attempt() -> None:
        async for page in pages.read():
            listed.extend(page)

    for attempts in itertools.count(1):
        try:
            asyncio.run(attempt())
        except UnusableListingError:
            raise
        except SourceUnreachableError:
            if not pages.can_continue:
                listed.clear()
                pages = pages.restarted()
        else:
            return listed, attempts
    raise AssertionError


OF_OBJECTS = st.lists(st.sets(st.integers(0, 9), min_size=1, max_size=6), max_size=8).map(
    lambda objects: [
        ObjectInfo(f"{number}.parquet", 10, "e", begin)
        for number, begins in enumerate(objects)
        for begin in begins
    ]
)
FAILURES = st.lists(st.integers(0, 5), max_size=12)


def by_place(units: list[ObjectInfo]) -> list[ObjectInfo]:
    return sorted(units, key=lambda unit: (unit.key, unit.begin))


@given(OF_OBJECTS.map(by_place), st.lists(st.integers(1, 4), min_size=1, max_size=5), FAILURES)
def test_listing_of_parts_of_objects_goes_on_wherever_it_fails(listed, sizes, fails):
    pages = SourcePages(Broken(listed, sizes, fails.copy()), SOURCE)
    found, attempts = read_all(pages)
    assert pages.can_continue, "it never started again"
    assert found == listed, "none is lost, and none comes twice"
    assert attempts <= len(fails) + 1


@given(
    OF_OBJECTS.flatmap(st.permutations),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    FAILURES,
)
def test_listing_without_an_order_loses_no_unit(listed, sizes, fails):
    found, _ = read_all(SourcePages(Enumerated(listed, sizes, fails.copy()), SOURCE))
    assert set(found) == set(listed)


class Enumerated(Broken):
    """As a table of rows: leaves out only the rows at its beginning that are not behind a key."""

    def units(
        self, source: SourceConfig, after: str = "", left_out: LeftOut | None = None
    ) -> Generator[list[ObjectInfo], None, None]:
        all_of_them = self.listed
        behind = (i for i, one in enumerate(all_of_them) if encoded(one.key) > encoded(after))
        self.listed = all_of_them[next(behind, len(all_of_them)) :]
        try:
            yield from super().units(source)
        finally:
            self.listed = all_of_them


class Killing(ProcessLister):
    """Kills the lister process of each of the first attempts after its second page of units."""

    def __init__(self, attempts: int) -> None:
        super().__init__(4)
        self.attempts = attempts
        self.behind: list[str] = []

    def units(
        self, source: SourceConfig, after: str = "", left_out: LeftOut | None = None
    ) -> Generator[list[ObjectInfo], None, None]:
        self.behind.append(after)
        for count, page in enumerate(super().units(source, after, left_out), 1):
            yield page
            if count == 2 and len(self.behind) <= self.attempts:
                [process] = self._running
                os.kill(process.pid, signal.SIGKILL)


def parquet_files(folder: Path) -> dict[str, object]:
    pq.write_table(pa.table({"a": np.arange(900)}), folder / "00.parquet", row_group_size=3)
    for number in range(1, 40):
        os.link(folder / "00.parquet", folder / f"{number:02d}.parquet")
    return {"format": "parquet"}


def npy_files(folder: Path) -> dict[str, object]:
    with open(folder / "00.npy", "wb") as file:
        layout = {"descr": "<f4", "fortran_order": False, "shape": (300 << 20,)}
        np.lib.format.write_array_header_1_0(file, layout)
        file.truncate(file.tell() + (300 << 22))  # sparse
    for number in range(1, 40):
        os.link(folder / "00.npy", folder / f"{number:02d}.npy")
    return {"format": "npy", "array": {"window": 1024}}


@pytest.mark.parametrize("files", [parquet_files, npy_files])
def test_listing_goes_on_when_its_process_is_killed_between_units_of_objects(files, tmp_path):
    source = SourceConfig.model_validate({"url": f"file://{tmp_path}/", **files(tmp_path)})
    for number in range(40):
        (tmp_path / f"{number:02d}.empty").touch()
        (tmp_path / f".{number:02d}").touch()
    whole = [unit for page in ProcessLister(4).units(source) for unit in page]
    lister = Killing(3)
    pages = SourcePages(lister, source)
    found, attempts = read_all(pages)
    lister.close()
    assert str(pages.left_out) == (
        "40 hidden names (.00, .01, .02, ...), 40 empty objects (00.empty, 01.empty, 02.empty, ...)"
    )
    assert len(whole) == 40 * 300
    assert found == whole
    assert 1 < attempts <= 4, "a process may have sent all of its pages before it is killed"
    assert lister.behind == sorted(set(lister.behind)), "each attempt began behind the one before"
