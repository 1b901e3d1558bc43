"""What the history takes on the disk, and what a disk that refuses does to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from cachecd.config.models import ServerConfig
from cachecd.daemon import monitoring
from cachecd.daemon.measurement import measure
from cachecd.daemon.monitoring import Monitoring
from cachecd.disk.filesystem import block_bytes, walk
from cachecd.errors import DiskError
from cachecd.monitor.history import History
from tests.daemon.life import Life, config
from tests.daemon.test_lives import LIMIT, SHARD, root, until

assert root  # a fixture


@pytest.fixture
@asynccontextmanager
async def life(root) -> AsyncIterator[Life]:
    async with Life(config(root, LIMIT, SHARD)) as opened:
        yield opened


@asynccontextmanager
async def monitored(life, status=None, **server) -> AsyncIterator[None]:
    """Samples the life, and saves its history at the end."""
    watching = Monitoring(ServerConfig(**server), status or life.status)
    running = asyncio.ensure_future(watching.run(life.loop))
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await watching.close(life.loop)


async def written(life) -> bytes:
    path = life.loop.layout.history
    await until(path.exists)
    return path.read_bytes()


async def sampled(life, count=2) -> None:
    """Until the history has some samples more."""
    asked = 0

    def status():
        nonlocal asked
        asked += 1
        return life.status()

    async with monitored(life, status):
        await until(lambda: asked >= count)


async def test_full_disk_keeps_the_history_that_was_written(life, monkeypatch):
    monkeypatch.setattr(monitoring, "_SECOND", 0.01)
    await sampled(life)
    before = await written(life)
    measured = life.loop.policy.room.measured
    life.loop.feed(measured._replace(refused="No space left on device"))
    await sampled(life, 5)
    assert life.loop.layout.history.read_bytes() == before
    life.loop.feed(measured)
    await sampled(life, 5)
    await until(lambda: life.loop.layout.history.read_bytes() != before)


async def test_history_and_its_replacement_fit_in_the_room_that_is_measured(life, monkeypatch):
    monkeypatch.setattr(monitoring, "_SECOND", 0.001)
    await until(lambda: life.status()["datasets"]["train"]["whole"])
    await sampled(life, 700)
    assert 0 < len(await written(life)) <= LIMIT // 100
    assert sum(walk(life.dir)) <= LIMIT
    layout = life.loop.layout
    assert measure(layout, 0, 0, 0).twice == block_bytes(layout.history) > 0
    room = life.loop.policy.room
    await until(lambda: room.measured.twice)
    assert room.used >= room.measured.other + room.measured.twice + room.measured.slack


async def test_history_grows_by_less_than_the_room_for_small_files(life, monkeypatch):
    """The daemon reserves 256 KiB for what small files grow between two measurements."""
    monkeypatch.setattr(monitoring, "_SECOND", 0.001)
    monkeypatch.setattr(monitoring, "_MOST_GROWTH", 2048)
    await sampled(life, 300)
    first = len(await written(life))
    assert 0 < first <= 2048
    await sampled(life, 300)
    await until(lambda: life.loop.layout.history.stat().st_size != first)
    assert life.loop.layout.history.stat().st_size <= first + 2048


async def test_defect_in_a_sample_is_logged_and_the_next_is_taken(life, monkeypatch):
    monkeypatch.setattr(monitoring, "_SECOND", 0.01)
    asked = 0

    def status():
        nonlocal asked
        asked += 1
        return life.status() if asked % 2 else {}

    async with monitored(life, status):
        await until(lambda: asked >= 6)
    restored = History.decode(await written(life), 1e12)
    assert len(restored.samples("seconds")) >= 3


def complaints(life):
    return life.status()["complaints"]


async def test_defect_in_a_sample_is_in_complaints_until_one_is_taken(life, monkeypatch):
    monkeypatch.setattr(monitoring, "_SECOND", 0.01)
    document = {}
    async with monitored(life, lambda: document):
        await until(lambda: complaints(life).get("monitoring", "").startswith("it failed"))
        document |= life.status()
        await until(lambda: "monitoring" not in complaints(life))


async def test_address_in_use_is_in_complaints(life):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        async with monitored(life, http=address):
            await until(lambda: "server.http" in complaints(life))
            assert f"cannot listen on {address}" in complaints(life)["server.http"]


async def test_history_that_cannot_be_written_is_in_complaints(life, monkeypatch):
    monkeypatch.setattr(monitoring, "_SECOND", 0.01)
    monkeypatch.setattr(monitoring, "_MINUTE", 0.01)

    def fail(*_: object, **__: object) -> None:
        raise DiskError("cannot write history: Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(monitoring, "replace", fail)
        async with monitored(life):
            await until(lambda: "writing the history" in complaints(life))
    async with monitored(life):
        await until(lambda: "writing the history" not in complaints(life))
