"""Streams between the policy and a worker: units, grants, `until`, and the handling of reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cachecd.daemon import worker_streams
from cachecd.daemon.command_runner import CommandRunner
from cachecd.daemon.listings import GenerationListing
from cachecd.daemon.worker_streams import FedGeneration
from cachecd.errors import DiskError
from cachecd.model import Condemned, Cursor, Lane, ObjectInfo, Shape
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.sampler.messages import Asks, Close, Closed, Described, Open, Units
from tests.daemon.directories import NAME, Directory, stream

SHAPE = Shape(2, 8, 4, 64 << 10, 7)
UNTIL = Cursor(1)
FIRST = 256 + 512 + 1024  # units that end three blocks


def objects(begin: int, end: int) -> list[ObjectInfo]:
    return [ObjectInfo(f"{n:05d}", 20, f"e{n}") for n in range(begin, end)]


class Bench:
    """A generation with a real table; the executor only records messages, unless a test has another."""

    def __init__(self, disk: Directory, listing: GenerationListing, executor: Any = None) -> None:
        self.sent: list[Any] = []
        self.events: list[Any] = []
        self.disk, self.listing = disk, listing
        self.runner = CommandRunner(disk.work, executor or self, self._deliver, lambda reply: None)
        self.streams = self.runner.streams
        self.fed = FedGeneration(NAME, disk.generation, listing, {"features": []}, SHAPE)
        self.streams.generations[NAME] = self.fed
        self.react: Callable[[Any], None] = lambda event: None

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def _deliver(self, event: Any) -> None:
        if isinstance(event, ev.Published):
            self.streams.published(event.stream, event.number)
        self.events.append(event)
        self.react(event)

    async def list(self, units: list[ObjectInfo], ends: bool = False) -> None:
        """Continues the listing with these units."""
        table = self.listing.table
        for at in range(0, len(units), 1024):
            page = units[at : at + 1024]
            await self.listing.run(lambda page=page: table.add(table.compare(page)))  # type: ignore[misc]
        if ends:
            await self.listing.run(table.finish)
            self.listing.is_first = False
        self.streams.wake(NAME)

    def open(self, index: int = 0, cursor: Cursor = Cursor(), **more: Any) -> None:  # noqa: B008
        self.runner.carry_out([do.OpenStream(stream(index), cursor, UNTIL, **more)])

    def ask(self, index: int = 0) -> None:
        self.streams.handle(Asks(stream(index)))

    async def until(self, there: Callable[[], Any]) -> Any:
        async with asyncio.timeout(20):
            while not there():
                await asyncio.sleep(0.001)
        return there()

    async def messages(self, count: int) -> list[Any]:
        await self.until(lambda: len(self.sent) >= count)
        return self.sent


@asynccontextmanager
async def opened(
    folder: Path, executor: Callable[[Directory], Any] = lambda disk: None
) -> AsyncIterator[Bench]:
    """A bench over an empty folder; `executor` makes one, which is ended with it."""
    disk = Directory(folder / "cache")
    listing = await GenerationListing.open(disk.generation.listing)
    carrier = executor(disk)
    bench = Bench(disk, listing, carrier)
    try:
        yield bench
    finally:
        if carrier is not None:
            await carrier.close(5)
        await bench.runner.finish()
        await listing.close()


@pytest.fixture
def bench(tmp_path) -> AbstractAsyncContextManager[Bench]:
    return opened(tmp_path)


def numbers(pages: list[Units]) -> list[int | None]:
    return [None if unit is None else unit.number for page in pages for unit in page.units]


async def _all_pages(bench: Bench, index: int) -> list[Units]:
    """Requests pages until the end."""

    def pages() -> list[Units]:
        return [m for m in bench.sent if isinstance(m, Units) and m.stream == stream(index)]

    async def next_page() -> Units:
        count = len(pages())
        bench.ask(index)
        await bench.until(lambda: len(pages()) > count)
        return pages()[-1]

    while (await next_page()).more == "listed":
        pass
    return pages()


async def test_stream_continues_at_its_cursor_with_its_lanes(bench):
    await bench.list(objects(0, 1000), ends=True)
    lanes = (Lane(0, 3, 17, 1, 20, 2, 5), Lane(0, 8, 2000, 1, 20))
    cursor = Cursor(0, 1, 40, lanes)
    bench.open(0, cursor, condemned=(Condemned(17, "died", True),))
    [opened] = await bench.messages(1)
    assert isinstance(opened, Open)
    assert (opened.cursor, opened.until, opened.shape) == (cursor, UNTIL, SHAPE)
    assert [unit and unit.key for unit in opened.units] == ["00017", None]
    assert [c.unit for c in opened.condemned] == [17]
    bench.ask()
    _, page = await bench.messages(2)
    assert (page.block, page.place) == (1, 40)


async def test_stream_that_is_closed_while_it_opens_sends_nothing(bench):
    await bench.list(objects(0, 300), ends=True)
    bench.open()
    bench.runner.carry_out([do.GrantShard(stream(0), 3), do.CloseStream(stream(0))])
    bench.open()
    await bench.messages(2)
    await asyncio.sleep(0.02)
    assert [type(message) for message in bench.sent] == [Close, Open]


async def test_excluded_units_are_not_sent(bench):
    await bench.list(objects(0, 300), ends=True)
    bench.disk.exclude("e1", "00017", "00100")
    bench.open(0, Cursor(0, 0, 4, (Lane(0, 3, 17, 1, 20, 2, 5),)))
    [opened] = await bench.messages(1)
    assert opened.units == (None,)
    bench.open(0)
    bench.open(1)
    await bench.messages(3)
    pages = await _all_pages(bench, 0) + await _all_pages(bench, 1)
    found = numbers(pages)
    assert len(found) == 300
    assert set(range(300)) - set(found) == {17, 100}


async def test_stream_waits_at_the_end_of_the_listing_and_continues(bench):
    await bench.list(objects(0, 300))
    bench.open()
    await bench.messages(1)
    pages = await _all_pages(bench, 0)
    assert pages[-1].more == "wait"
    bench.ask()
    bench.streams.wake(NAME)
    await asyncio.sleep(0.02)
    assert len(bench.sent) == 1 + len(pages), "nothing new, nothing sent"
    await bench.list(objects(300, FIRST))
    messages = await bench.messages(2 + len(pages))
    assert messages[-1].block == 1
    await bench.list([], ends=True)
    while bench.sent[-1].more != "end":
        bench.ask()
        await asyncio.sleep(0.001)
    found = numbers([m for m in bench.sent if isinstance(m, Units)])
    assert len(found) == len(set(found)) == SHAPE.units_of(0, bench.listing.table.ends)


async def test_page_that_the_disk_refuses_is_read_again(bench, monkeypatch):
    monkeypatch.setattr(worker_streams, "_RETRY", 0.01)
    failures = [DiskError("EIO"), DiskError("EIO")]
    page = GenerationListing.page

    async def refusing(self: Any, *args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await page(self, *args)

    monkeypatch.setattr(GenerationListing, "page", refusing)
    await bench.list(objects(0, 300), ends=True)
    bench.open()
    await bench.messages(1)
    bench.ask()
    assert isinstance((await bench.messages(2))[1], Units)


async def test_defect_in_the_listing_fails_the_stream(bench, monkeypatch):
    async def broken(self: Any, *args: Any) -> Any:
        return 1 // 0

    monkeypatch.setattr(GenerationListing, "page", broken)
    await bench.list(objects(0, 300), ends=True)
    bench.open()
    await bench.messages(1)
    bench.ask()
    [failed] = await bench.until(lambda: bench.events)
    assert (failed.stream, failed.cause) == (stream(0), "worker")
    assert bench.sent[-1] == Close(stream(0))
    bench.streams.handle(Closed(stream(0)))
    bench.runner.carry_out([do.MarkLease("x", 0)])
    await bench.until(lambda: len(bench.events) > 1)
    assert not any(isinstance(e, ev.StreamClosed) for e in bench.events)


async def test_other_streams_open_when_the_first_has_found_the_schema(bench):
    bench.fed.schema = None
    await bench.list(objects(0, 300), ends=True)
    bench.open(0)
    bench.open(1)
    await bench.messages(1)
    await asyncio.sleep(0.02)
    assert [(m.stream.index, m.schema) for m in bench.sent] == [(0, None)]
    schema = {"features": ["x"]}
    bench.streams.handle(Described(stream(0), schema))
    _, second = await bench.messages(2)
    assert (second.stream.index, second.schema) == (1, schema)


# --- with a worker


def make_source(folder: Path, count: int, size: int = 1000) -> list[ObjectInfo]:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:05d}").write_bytes(f"{number:05d} ".encode().ljust(size, b"x"))
    return [
        ObjectInfo(path.name, size, f'"{path.stat().st_mtime_ns:x}-{size:x}"')
        for path in sorted(folder.iterdir())
    ]
