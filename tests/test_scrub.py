"""The scrub over real shards: what it finds, how fast it reads, and what it leaves alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cachecd import scrub
from cachecd.complaints import Complaints
from cachecd.errors import DiskError
from cachecd.events import Event, ShardVerified
from cachecd.layout import Layout
from cachecd.live import LiveShards
from cachecd.model import Held, Shard, ShardId
from cachecd.sampler.throttle import CREDIT
from cachecd.scrub import Scrub
from tests.core.shards import example, flip, write
from tests.pagecache import dropped, resident


class Cache:
    """Shards 1, 2, ... of the dataset train, served, and what a scrub of them tells."""

    def __init__(self, root: Path, shards: int, each: int = 50) -> None:
        self.layout = Layout(root)
        self.live = LiveShards("train")
        self.told: list[Event] = []
        self.unmounted = False
        for number in range(1, shards + 1):
            shard = ShardId("train", number)
            path = self.layout.shard(shard)
            path.parent.mkdir(parents=True, exist_ok=True)
            meta = json.dumps({"dataset": "train", "number": number})
            write(path, [example(i) for i in range(each)], meta)
            self.live.add(Shard(shard, "g", each, path.stat().st_size, 8192))

    def path(self, number: int) -> Path:
        return self.layout.shard(ShardId("train", number))

    def feed(self, event: Event) -> None:
        self.told.append(event)
        assert isinstance(event, ShardVerified)
        self.live[event.shard.number].barred = True

    def check(self) -> None:
        if self.unmounted:
            raise DiskError("the cache is not there any more")

    def scrub(self, rate: float | None = 1e9, complaints: Complaints | None = None) -> Scrub:
        datasets: Any = {"train": SimpleNamespace(live=self.live)}
        return Scrub(
            rate,
            self.layout,
            datasets,
            lambda shard: Held([shard.number]),
            self.feed,
            complaints or Complaints(),
            self.check,
        )

    async def until(self, condition: Callable[[dict[str, Any]], object], **options: Any) -> Scrub:
        """Runs a scrub until the condition of its status holds."""
        found = self.scrub(**options)
        running = asyncio.ensure_future(found.run())
        deadline = time.monotonic() + 30
        try:
            while not condition(found.status() or {}):
                assert not running.done(), running.exception()
                assert time.monotonic() < deadline, (found.status(), self.told)
                await asyncio.sleep(0.002)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
        return found


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "_PAUSE", 0.01)


def test_every_shard_is_read_in_a_round_and_sound_ones_are_left_alone(tmp_path: Path):
    cache = Cache(tmp_path, 5)
    found = asyncio.run(cache.until(lambda s: s["verified_shards"] >= 12))
    assert cache.told == []
    size = sum(p.stat().st_size for p in tmp_path.rglob("*.tfrecord*"))
    status = found.status()
    assert status is not None
    assert status["verified_bytes"] >= 2 * size
    assert (status["corrupt_shards"], status["unreadable_shards"]) == (0, 0)


def flipped(path: Path) -> None:
    flip(path, 200)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def cut_between_records(path: Path) -> None:
    last = len(example(49)) + 16
    os.truncate(path, path.stat().st_size - last)


def flipped_sidecar(path: Path) -> None:
    flip(Layout.sidecar(path), -10)


def no_sidecar(path: Path) -> None:
    Layout.sidecar(path).unlink()


def gone(path: Path) -> None:
    path.unlink()


def another(path: Path) -> None:
    """A sound pair, but that of another shard."""
    for file in (path, Layout.sidecar(path)):
        file.write_bytes(file.with_name(file.name.replace("2", "1")).read_bytes())


DAMAGES = (flipped, cut, cut_between_records, flipped_sidecar, no_sidecar, gone, another)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_shard_is_told_once_with_its_units_and_its_neighbours_are_not(
    tmp_path: Path, damage: Callable[[Path], None]
):
    cache = Cache(tmp_path, 3)
    damage(cache.path(2))
    found = asyncio.run(
        cache.until(lambda s: s["verified_shards"] >= 6 and s["corrupt_shards"] >= 1)
    )
    assert cache.told == [ShardVerified(ShardId("train", 2), False, Held([2]))]
    assert (found.status() or {})["corrupt_shards"] == 1


@pytest.mark.parametrize("mark", ["retired", "barred", "verifying"])
def test_a_shard_that_is_out_of_service_is_not_read(tmp_path: Path, mark: str):
    cache = Cache(tmp_path, 2)
    flip(cache.path(2), 200)
    setattr(cache.live[2], mark, True)
    asyncio.run(cache.until(lambda s: s["verified_shards"] >= 3))
    assert cache.told == []


def test_a_shard_that_is_unlinked_while_it_is_read_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = Cache(tmp_path, 2)
    read = scrub._read

    def meanwhile(path: Path) -> Iterator[int]:
        if path == cache.path(2) and 2 in cache.live:
            cache.live.remove(2)
            path.unlink()
        yield from read(path)

    monkeypatch.setattr(scrub, "_read", meanwhile)
    asyncio.run(cache.until(lambda s: 2 not in cache.live and s["verified_shards"] >= 3))
    assert cache.told == []


def test_a_cache_that_is_taken_away_has_lost_no_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = Cache(tmp_path / "cache", 3)

    def taken_away(path: Path) -> Iterator[int]:
        if not cache.unmounted:
            cache.unmounted = True
            (tmp_path / "cache").rename(tmp_path / "elsewhere")
        yield from read(path)

    read = scrub._read
    monkeypatch.setattr(scrub, "_read", taken_away)
    complaints = Complaints()
    asyncio.run(
        cache.until(
            lambda s: s["unreadable_shards"] >= 2 and complaints.reason, complaints=complaints
        )
    )
    assert cache.told == []
    (tmp_path / "elsewhere").rename(tmp_path / "cache")
    cache.unmounted = False
    monkeypatch.setattr(scrub, "_read", read)
    asyncio.run(cache.until(lambda s: s["verified_shards"] >= 6, complaints=complaints))
    assert (cache.told, complaints.reason) == ([], "")


def test_it_reads_no_faster_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scrub, "PIECE", 64 << 10)
    rate = 4e6
    cache = Cache(tmp_path, 4, each=6000)
    began = time.monotonic()
    found = asyncio.run(cache.until(lambda s: s["verified_bytes"] > 1.2e6, rate=rate))
    status = found.status()
    assert status is not None
    sidecar = Layout.sidecar(cache.path(1)).stat().st_size
    elapsed = time.monotonic() - began
    assert status["verified_bytes"] <= (elapsed + CREDIT) * rate + (64 << 10) + sidecar


def test_without_a_rate_nothing_is_read_until_it_is_given_one(tmp_path: Path):
    async def test() -> None:
        cache = Cache(tmp_path, 2)
        flip(cache.path(1), 200)
        found = cache.scrub(rate=None)
        running = asyncio.ensure_future(found.run())
        await asyncio.sleep(0.05)
        assert found.status() is None
        found.set_rate(1e9)
        deadline = time.monotonic() + 30
        while not cache.told and time.monotonic() < deadline:
            await asyncio.sleep(0.002)
        found.set_rate(None)
        assert len(cache.told) == 1
        assert found.status() is None
        running.cancel()

    asyncio.run(test())


@pytest.mark.parametrize("warm", [True, False])
def test_the_page_cache_is_left_as_it_is(tmp_path: Path, warm: bool):
    path = Cache(tmp_path, 1, each=2000).path(1)
    dropped(path)
    if warm:
        path.read_bytes()
    before = resident(path)
    assert len(before) > 10
    assert sum(scrub._read(path)) > path.stat().st_size
    assert resident(path) == before


def test_its_thread_has_the_lowest_priority_and_no_other_has(tmp_path: Path):
    async def test() -> None:
        nice: list[int] = []
        with scrub._pool() as pool:
            loop = asyncio.get_running_loop()
            ask = lambda: os.getpriority(os.PRIO_PROCESS, 0)  # noqa: E731
            nice.append(await loop.run_in_executor(pool, ask))
        assert nice == [19]
        assert await asyncio.to_thread(os.getpriority, os.PRIO_PROCESS, 0) < 19

    asyncio.run(test())


def test_a_file_system_without_direct_reads_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = Cache(tmp_path, 2)
    flip(cache.path(1), 300)
    opened = os.open

    def refusing(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument", path)
        return opened(path, flags, *more, **options)

    monkeypatch.setattr(scrub.os, "open", refusing)
    asyncio.run(cache.until(lambda s: s["verified_shards"] >= 3))
    assert [e.shard.number for e in cache.told if isinstance(e, ShardVerified)] == [1]
