"""A worker that carries several streams: their memory, their messages, and how they end."""

from __future__ import annotations

import asyncio
import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachecd.model import Condemned, Cursor, Lane, Shape, Skipped, SkippedRecords, StreamId, Unit
from cachecd.sampler import messages
from cachecd.sampler.messages import (
    Close,
    Closed,
    Failed,
    Grant,
    Open,
    Sealed,
    Units,
    Until,
    Working,
)
from tests.sampler.streams import Player, listed
from tests.sampler.test_stream import _tfrecords, player, shards, source


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class Bench:
    """A worker, and streams of TFRecord files of 30 records of 2 kB each."""

    def __init__(self, root: Path) -> None:
        chance = random.Random(3)
        self.root = root
        self.bodies = _tfrecords([[2000] * 30 for _ in range(8)], chance)
        self.dataset = source(root / "src", "tfrecord", self.bodies)
        self.units = listed(self.dataset)

    def player(self, index: int = 0, **more: Any) -> Player:
        stream = StreamId("train", "g", index)
        return player(self.root / f"{index}", self.dataset, self.units, stream=stream, **more)


async def settle(until: Callable[[], bool] = lambda: False, turns: int = 3000) -> None:
    """Lets the worker run, until this is so or it has nothing left to do."""
    for _ in range(turns):
        if until():
            return
        await asyncio.sleep(0.0001)


async def test_closed_stream_leaves_nothing(bench: Bench):
    of = bench.player(shape=Shape(1, 8, 4, 4 << 20, 0), page=2)
    worker = of.worker()
    serving = asyncio.ensure_future(worker.serve())
    of.feed = lambda: None  # type: ignore[method-assign]
    of.open(worker)
    worker.receive(Units(of.stream, 0, 0, tuple(bench.units[:2]), "wait"))
    await settle(lambda: bool(worker.paths) and bool(os.listdir(of.folder)))
    assert worker.paths == [str(of.folder / "0.tfrecord")]
    worker.receive(Close(of.stream))
    await settle(lambda: isinstance(of.said[-1], Closed))
    assert (os.listdir(of.folder), worker.paths) == ([], [])
    serving.cancel()


def test_stream_lets_go_of_what_it_holds_beyond_the_memory(bench: Bench):
    """Two streams by turns, with no memory to spare: the same shards, fetched more than once."""

    async def run(memory: float) -> tuple[list[Any], int]:
        of = [bench.player(index, memory=memory) for index in (0, 1)]
        worker = of[0].worker()
        worker._send = lambda message: of[message.stream.index]._heard(message)  # type: ignore[union-attr]
        serving = asyncio.ensure_future(worker.serve())
        grants = [one.grant for one in of]
        for one in of:
            one.grant = lambda: None  # type: ignore[method-assign]
            one.open(worker)
        while not all(one.done for one in of):
            for one, grant in zip(of, grants, strict=True):
                made = len(one.made)
                grant()
                await settle(lambda one=one, made=made: len(one.made) > made)  # type: ignore[misc]
        serving.cancel()
        fetched = sum(one.made[-1].outcome.fetched_bytes for one in of)
        return [shards(one) for one in of], fetched

    roomy, once = asyncio.run(run(1e9))
    tight, more = asyncio.run(run(0))
    assert tight == roomy
    assert once < 1.01 * 2 * sum(map(len, bench.bodies)) < more


async def test_units_that_do_not_follow_close_the_stream(bench: Bench):
    of = bench.player()
    failed: list[Failed] = []
    worker = of.worker()
    worker._send = lambda m: failed.append(m) if isinstance(m, Failed) else None
    serving = asyncio.ensure_future(worker.serve())
    of.open(worker)
    worker.receive(Units(of.stream, 0, 5, tuple(bench.units[5:]), "end"))
    await settle(lambda: bool(failed))
    [failure] = failed
    assert failure.cause == "worker"
    assert "expected (0, 0)" in failure.reason
    assert worker._streams == {}
    serving.cancel()


def test_messages_of_streams_survive_the_pipe():
    stream, shape = StreamId("train", "0123", 3), Shape(8, 32, 16, 64 << 20, 7)
    cursor = Cursor(1, 2, 3, (Lane(2, 1, 9, 2**64 - 1, 100, 4, 50),))
    unit = Unit(9, "a/\udcff", 100, "e", 5, "cat")
    skipped = Skipped(9, "a", 2**63, 4, "why", True)
    passed = SkippedRecords("odd", 5, ("a: 1", "b: \udcff"))
    for message in (
        Open(
            stream,
            cursor,
            (unit, None),
            cursor,
            shape,
            {"version": 1},
            ("a", "b"),
            parts=((0, 9, 3, 5),),
            remade={"x": "y"},
        ),
        Open(stream, cursor, (), None, shape, None, (), (Condemned(3, "died", True),)),
        Units(stream, 1, 2, (unit, unit), "wait"),
        Until(stream, cursor),
        Until(stream, None),
        Grant(stream, 12, "/tmp/x"),
        Close(stream),
        messages.Asks(stream),
        messages.Described(stream, {"version": 1}),
        Working(stream, 12, 3, -1, True),
        Sealed(
            stream,
            12,
            Cursor(),
            cursor,
            "full",
            1,
            2,
            3,
            2**64 - 1,
            4,
            5,
            (passed,),
            7,
            "a: 1: odd",
            (skipped,),
            5,
            0.5,
        ),
        Closed(stream),
        Failed(stream, "disk", "full", 28, 5, True),
    ):
        assert messages.FRAMES.read(io.BytesIO(messages.FRAMES.pack(message))) == message
