"""The order in which commands are carried out, and their results delivered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cachecd.daemon.command_runner import CommandRunner
from cachecd.errors import DiskError
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.sampler.messages import Close, Closed, Sealed
from tests.daemon.directories import NAME, Directory, stream
from tests.disk.shards import cursor, make, tree, write


class Bench:
    """CommandRunner over a directory. The executor only notes its calls."""

    def __init__(self, disk: Directory) -> None:
        self.disk = disk
        self.sent: list[Any] = []
        self.events: list[ev.Event] = []
        self.replies: list[Any] = []
        self.runner = CommandRunner(disk.work, self, self.events.append, self.replies.append)

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def seal(self, number: int, index: int = 0) -> None:
        """A worker reports that it has sealed a shard."""
        write(self.disk.generation, number)
        place = cursor(number), cursor(number + 3)
        sealed = Sealed(
            stream(index), number, *place, "full", 6, 1, 8192, 5, 2, 0, (), 0, "", (), 100, 1.0
        )
        self.runner.streams.handle(sealed)

    async def settle(self, count: int) -> list[ev.Event]:
        """Waits for this many events."""
        async with asyncio.timeout(10):
            while len(self.events) < count:
                await asyncio.sleep(0.001)
        return self.events


@pytest.fixture
@asynccontextmanager
async def bench(tmp_path) -> AsyncIterator[Bench]:
    opened = Bench(Directory(tmp_path))
    try:
        yield opened
    finally:
        await opened.runner.finish()


async def test_results_have_the_order_of_commands_and_reports(bench):
    carry = bench.runner.carry_out
    bench.seal(0)
    bench.seal(3)
    carry([do.PublishShard(stream(0), 0), do.PublishShard(stream(0), 3)])
    carry([do.MarkRetired(NAME, ((0, 0),)), do.CloseStream(stream(0))])
    assert bench.sent == [Close(stream(0))]
    bench.seal(6)  # before the worker gets Close
    bench.runner.streams.handle(Closed(stream(0)))
    events = await bench.settle(7)
    assert [type(event).__name__ for event in events] == [
        *(
            "ShardSealed",
            "ShardSealed",
            "Published",
            "Published",
            "CommandDone",
            "ShardSealed",
            "StreamClosed",
        )
    ]
    assert isinstance(events[0], ev.ShardSealed)
    assert (events[0].facts.ended, events[0].facts.allocated) == (2, 8192)
    names = [f"{n:010d}.tfrecord{end}" for n in (0, 3) for end in ("", ".idx")]
    assert tree(bench.disk.generation) == sorted(["0000000000.old", *names])


async def test_search_on_a_failing_disk_is_refused(bench, monkeypatch):
    bench.disk.exclude("e1", "key-0-0")

    def refuse(*_: Any) -> Any:
        raise DiskError("EIO")

    monkeypatch.setattr("cachecd.daemon.disk_work.find_holders", refuse)
    make(bench.disk.generation, 0)
    bench.runner.carry_out([do.FindHolders("e1")])
    assert await bench.settle(1) == [ev.DiskRefused(do.FindHolders("e1"), "EIO")]


async def test_defect_in_a_command_is_a_refusal(bench, monkeypatch):
    monkeypatch.setattr("cachecd.disk.leases.mark", lambda *_: 1 // 0)
    monkeypatch.setattr("cachecd.disk.publish.publish", lambda *_, **_more: 1 // 0)
    write(bench.disk.generation, 0)
    bench.runner.carry_out([do.MarkLease("x", 0), do.PublishShard(stream(0), 0)])
    for refused in await bench.settle(2):
        assert isinstance(refused, ev.DiskRefused)
        assert "ZeroDivisionError" in refused.reason
