"""What every executor does: the tests that a class of its own inherits."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from cachecd.executors import Executor
from cachecd.model import Cursor, StreamId, Unit
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
from tests.sampler.streams import one_shard

Kind = TypeVar("Kind")


def stream(number: int) -> StreamId:
    return StreamId("train", "g", number)


class ExecutorContract:
    """`executor` makes one over the files of `folder/src`; `path_of` names the shards."""

    @abstractmethod
    def executor(self, setup: Setup, path_of: Callable[[Grant], Path]) -> Executor: ...

    @asynccontextmanager
    async def started(self, folder: Path) -> AsyncIterator[None]:
        (folder / "src").mkdir()
        self.folder, self.reports = folder, list[FromStream]()
        dataset = {"source": {"url": f"file://{folder}/src", "format": "files"}}
        self.one = self.executor(Setup({"train": dataset}, 4, None), self.path_of)
        await self.one.start(self.reports.append)
        try:
            yield
        finally:
            await self.one.close(10)

    def path_of(self, grant: Grant) -> Path:
        return self.folder / f"{grant.number}.{grant.version}"

    def units(self, number: int, count: int = 2) -> list[Unit]:
        units = [Unit(10 * number + at, f"{10 * number + at}", 3) for at in range(count)]
        for unit in units:
            (self.folder / "src" / unit.key).write_bytes(b"abc")
        return units

    def send(self, number: int, count: int = 2, version: int = 0) -> None:
        """Has stream `number` make the shard of this number."""
        opening, units, grant = one_shard(self.units(number, count), Path(), number)
        for message in (opening, units, replace(grant, version=version)):
            self.one.send(message)

    async def report(self, kind: type[Kind], number: int, count: int = 1) -> Kind:
        """Waits for report `count` of this kind about stream `number`."""

        def matching() -> list[Kind]:
            of_stream = (each for each in self.reports if each.stream == stream(number))
            return [each for each in of_stream if isinstance(each, kind)]

        async with asyncio.timeout(30):
            while len(matching()) < count:
                await asyncio.sleep(0.005)
        return matching()[count - 1]

    async def test_granted_shard_is_sealed_at_the_path_of_its_grant(self, tmp_path: Path):
        async with self.started(tmp_path):
            self.send(1, version=3)
            sealed = await self.report(Sealed, 1)
            assert (sealed.records, sealed.number) == (2, 1)
            assert self.path_of(Grant(stream(1), 1, 3)).exists()

    async def test_reports_of_a_stream_keep_their_order(self, tmp_path: Path):
        async with self.started(tmp_path):
            self.send(1)
            await self.report(Sealed, 1)
            self.one.send(Close(stream(1)))
            await self.report(Closed, 1)
            kinds = [type(each) for each in self.reports if not isinstance(each, Failed)]
            assert kinds.index(Described) < kinds.index(Sealed) < kinds.index(Closed)
            assert kinds[-1] is Closed

    async def test_message_for_a_stream_that_was_never_opened_is_dropped(self, tmp_path: Path):
        async with self.started(tmp_path):
            self.one.send(Grant(stream(7), 7))
            self.one.send(Units(stream(7), 0, 0, (), "end"))
            self.one.send(Close(stream(7)))
            await self.report(Closed, 7)
            assert [each for each in self.reports if each.stream == stream(7)] == [
                Closed(stream(7))
            ]
            assert not list(self.folder.glob("7.*"))

    async def test_close_removes_the_shard_that_is_not_sealed(self, tmp_path: Path):
        async with self.started(tmp_path):
            opening, _, grant = one_shard([], Path(), 2)
            self.one.send(opening)
            self.one.send(grant)  # no units follow
            self.one.send(Close(stream(2)))
            await self.report(Closed, 2)
            assert not list(self.folder.glob("2.*"))

    async def test_stream_that_is_opened_again_begins_again(self, tmp_path: Path):
        async with self.started(tmp_path):
            self.send(1)
            first = await self.report(Sealed, 1)
            self.send(1)
            again = await self.report(Sealed, 1, 2)
            assert (again.records, again.digest) == (first.records, first.digest)

    async def test_stream_whose_source_fails_ends_with_the_reason(self, tmp_path: Path):
        async with self.started(tmp_path):
            self.one.send(
                Open(stream(3), Cursor(), (), None, self._shape(), {"not": "a schema"}, ())
            )
            self.one.send(Units(stream(3), 0, 0, tuple(self.units(3)), "end"))
            self.one.send(Grant(stream(3), 3))
            assert (await self.report(Failed, 3)).reason

    def _shape(self) -> Any:
        return one_shard([], Path(), 3)[0].shape

    async def test_after_close_nothing_is_reported_and_no_draft_is_left(self, tmp_path: Path):
        async with self.started(tmp_path):
            opening, _, grant = one_shard([], Path(), 4)
            self.one.send(opening)
            self.one.send(grant)
            await self.one.close(10)
            before = list(self.reports)
            self.send(5)
            await asyncio.sleep(0)
            assert self.reports == before
            assert not list(self.folder.glob("[45].*"))
