"""Streams over local sampler processes: which process carries them, and how they end."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cachecd.executors.local import LocalExecutor
from cachecd.model import Cursor, Shape, StreamId, Unit
from cachecd.sampler.messages import (
    Close,
    Closed,
    Described,
    Failed,
    FromStream,
    Grant,
    Open,
    Sealed,
    Setup,
    Units,
)
from tests.executors.bench import is_alive, until

SHAPE = Shape(8, 8, 4, 64 << 10, 0)
CHANCE = random.Random(7)
BODIES = [CHANCE.randbytes(9_000) for _ in range(40)]


class Bench:
    """An executor, and streams that all have the same units: files of 9 kB."""

    def __init__(self, folder: Path, workers: int, **options: Any) -> None:
        self.folder = folder
        self.said: list[FromStream] = []
        self.schema: dict[str, Any] | None = None
        (folder / "src").mkdir(parents=True)
        self.units = []
        for number, body in enumerate(BODIES):
            (folder / "src" / f"{number:02d}").write_bytes(body)
            self.units.append(Unit(number, f"{number:02d}", len(body), ""))
        dataset = {
            "source": {"url": f"file://{folder}/src", "format": "files"},
            "transform": options.pop("transform", []),
        }
        memory = options.get("memory", float("inf"))
        self.executor = LocalExecutor(
            Setup({"train": dataset}, 4, None, memory=memory), workers, None, **options
        )

    def _report(self, message: FromStream) -> None:
        if isinstance(message, Failed):
            assert not self.unsealed(message.stream), "its files are gone before it is reported"
        self.said.append(message)
        match message:
            case Described(schema=schema):
                self.schema = schema

    def unsealed(self, stream: StreamId) -> list[Path]:
        sealed = {m.number for m in self.of(stream, Sealed)}
        files = (self.folder / f"{stream.index}").iterdir()
        return [file for file in files if int(file.name.partition(".")[0]) not in sealed]

    def of(self, stream: StreamId, kind: type[Any]) -> list[Any]:
        return [m for m in self.said if isinstance(m, kind) and m.stream == stream]

    def open(self, index: int, cursor: Cursor | None = None) -> StreamId:
        """Opens a stream and gives it all units that are left."""
        stream, cursor = StreamId("train", "g", index), cursor or Cursor()
        (self.folder / f"{index}").mkdir(exist_ok=True)
        lanes = tuple(self.units[lane.unit] for lane in cursor.lanes)
        self.executor.send(Open(stream, cursor, lanes, None, SHAPE, self.schema, ()))
        units = tuple(self.units[cursor.place :])
        self.executor.send(Units(stream, 0, cursor.place, units, "end"))
        return stream

    def grant(self, stream: StreamId, *shards: int) -> None:
        for shard in shards:
            self.executor.send(Grant(stream, shard, self.path(stream, shard)))

    def path(self, stream: StreamId, shard: int) -> str:
        return str(self.folder / f"{stream.index}" / f"{shard}.tfrecord")

    async def sealed(self, stream: StreamId, shard: int) -> Sealed:
        def found() -> list[Sealed]:
            return [m for m in self.of(stream, Sealed) if m.number == shard]

        await until(lambda: bool(found()))
        return found()[-1]

    async def ended(self, stream: StreamId, kind: type[Any]) -> Any:
        await until(lambda: bool(self.of(stream, kind)))
        return self.of(stream, kind)[-1]

    def files(self, stream: StreamId) -> dict[str, bytes]:
        return {f.name: f.read_bytes() for f in (self.folder / f"{stream.index}").iterdir()}


@asynccontextmanager
async def bench(folder: Path, workers: int = 1, **options: Any) -> AsyncIterator[Bench]:
    one = Bench(folder, workers, **options)
    await one.executor.start(one._report)
    try:
        yield one
    finally:
        pids, said = one.executor.pids, list(one.said)
        await one.executor.close(10)
        assert not any(is_alive(pid) for pid in pids)
        assert one.said == said, "nothing is reported any more"
        for index in range(SHAPE.streams):
            if (folder / f"{index}").exists():
                assert not one.unsealed(StreamId("train", "g", index))


async def test_streams_are_spread_over_the_processes_and_each_fills_shards(tmp_path: Path):
    async with bench(tmp_path, workers=2) as b:
        nobodys = StreamId("train", "g", 5)
        b.grant(nobodys, 0)
        b.executor.send(Close(nobodys))
        await b.ended(nobodys, Closed)
        assert b.said == [Closed(nobodys)]
        streams = [b.open(index) for index in range(4)]
        assert sorted(len(p.streams) for p in b.executor._processes) == [2, 2]
        for stream in streams:
            b.grant(stream, 0, 1)
        for stream in streams:
            first, second = await b.sealed(stream, 0), await b.sealed(stream, 1)
            assert first.records > 0
            assert second.before == first.after
        assert not any(isinstance(m, Failed) for m in b.said)


async def test_streams_of_a_killed_process_fail_and_the_others_go_on(tmp_path: Path):
    async with bench(tmp_path, workers=2, transform="tests.sampler.steps:slow") as b:
        streams = [b.open(index) for index in range(4)]
        for stream in streams:
            b.grant(stream, 0)
        process = next(p for p in b.executor._processes if streams[0] in p.streams)
        lost = sorted(process.streams)
        kept = sorted(set(streams) - set(lost))
        assert len(lost) == len(kept) == 2
        await until(lambda: any((process.unit_of(s) or 0) > 0 for s in lost))
        [at_work] = [s for s in lost if process.unit_of(s) is not None]
        await until(lambda: bool(b.unsealed(at_work)))
        os.kill(process.pid, signal.SIGKILL)
        for stream in lost:
            failed = await b.ended(stream, Failed)
            assert (failed.cause, failed.passing) == ("worker", True)
            assert (failed.unit is not None) == (stream == at_work)
        for stream in kept:
            assert (await b.sealed(stream, 0)).records > 0
            assert not b.of(stream, Failed)
        b.executor.send(Close(at_work))
        await b.ended(at_work, Closed)
        await until(lambda: len(b.executor.pids) == 2)
        again = b.open(at_work.index)
        b.grant(again, 0)
        assert (await b.sealed(again, 0)).records > 0


async def test_process_that_waits_is_not_silent_and_its_death_blames_no_unit(tmp_path: Path):
    async with bench(tmp_path, silence=1.0) as b:
        stream = b.open(0)
        b.grant(stream, 0)
        await b.sealed(stream, 0)
        await asyncio.sleep(2.5)
        b.grant(stream, 1)
        assert (await b.sealed(stream, 1)).records > 0
        assert not b.of(stream, Failed)
        [process] = b.executor._processes
        await until(lambda: process.unit_of(stream) is None)
        b.executor._command = (str(tmp_path / "none"),)
        os.kill(process.pid, signal.SIGKILL)
        failed = await b.ended(stream, Failed)
        assert (failed.cause, failed.unit, failed.passing) == ("worker", None, True)

        b.open(0)
        await until(lambda: len(b.of(stream, Failed)) == 2)
        failed = b.of(stream, Failed)[-1]
        assert failed.reason.startswith("no sampler process stays alive: cannot start ")
