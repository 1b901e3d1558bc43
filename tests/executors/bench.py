"""An executor over files of the test's own, and what it delivers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cachecd.executors.local import LocalExecutor
from cachecd.model import StreamId, Unit
from cachecd.sampler.messages import Close, Failed, FromStream, Sealed, Setup
from tests.sampler.streams import one_shard


class Bench:
    def __init__(self, folder: Path, workers: int, **options: Any) -> None:
        self.folder = folder
        self.said: list[FromStream] = []
        dataset = {"source": {"url": f"file://{folder}/src", "format": "files"}}
        steps = {"transform": options.pop("transform", [])}
        memory = options.pop("memory", float("inf"))
        self.setup = Setup({"train": {**dataset, **steps}}, 4, None, memory=memory)
        self.executor = LocalExecutor(
            self.setup,
            workers,
            options.pop("python", None),
            lambda grant: Path(self.path(grant.number)),
            **options,
        )

    async def start(self) -> None:
        self.executor.launch()
        await self.executor.start(self._report)

    def _report(self, message: FromStream) -> None:
        self.said.append(message)
        if isinstance(message, Sealed):
            self.executor.send(Close(message.stream))

    def submit(self, number: int, *bodies: bytes) -> None:
        """Has a stream make one shard of these bodies."""
        (self.folder / "src").mkdir(exist_ok=True)
        units = []
        for body in bodies:
            unit = 1000 * number + len(units)
            (self.folder / "src" / f"{unit}").write_bytes(body)
            units.append(Unit(unit, f"{unit}", len(body)))
        for message in one_shard(units, Path(self.path(number)), number):
            self.executor.send(message)

    def unit_of(self, number: int) -> int | None:
        """The unit of this shard that a process has in hand."""
        units = (p.unit_of(StreamId("train", "g", number)) for p in self.executor._processes)
        return next((unit for unit in units if unit is not None), None)

    def path(self, number: int) -> str:
        return str(self.folder / f"{number}.tfrecord")

    async def answer(self, number: int) -> Sealed | Failed:
        def found() -> list[Sealed | Failed]:
            ends = (m for m in self.said if isinstance(m, (Sealed, Failed)))
            return [end for end in ends if end.stream.index == number]

        await until(lambda: bool(found()))
        [answer] = found()
        return answer

    async def failed(self, number: int) -> Failed:
        answer = await self.answer(number)
        assert isinstance(answer, Failed), answer
        assert not list(self.folder.glob(f"{number}.tfrecord*")), "nothing of it is left"
        return answer


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def bench(folder: Path, workers: int = 1, **options: Any) -> AsyncIterator[Bench]:
    one = Bench(folder, workers, **options)
    await one.start()
    try:
        yield one
    finally:
        pids = one.executor.pids
        await one.executor.close(10)
        assert not any(is_alive(pid) for pid in pids)
        assert one.executor.pids == []


def is_alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
