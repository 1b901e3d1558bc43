"""Plays the daemon to a worker in this process: lists units, feeds and grants streams, kills the worker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachecd.config import DatasetConfig
from cachecd.model import Cursor, Shape, StreamId, Unit
from cachecd.sampler.heartbeat import SIZE, Heartbeat
from cachecd.sampler.messages import (
    Asks,
    Described,
    Failed,
    Grant,
    Open,
    Sealed,
    Setup,
    Units,
    Working,
)
from cachecd.sampler.worker import Worker
from cachecd.stores.retry import Retry
from cachecd.units.source_units import list_units
from cachecd.units.unit_store import open_unit_store

RETRY = Retry(2, within=0.3, first=0.01)
_ENDS = ("pass", "until")  # why a stream has no more to do


def listed(dataset: dict[str, Any]) -> list[Unit]:
    """The units of a dataset, as a lister finds them."""
    source = DatasetConfig.model_validate(dataset).source
    found = [unit for page in list_units(source, open_unit_store(source, 4)) for unit in page]
    return [
        Unit(number, one.key, one.size, one.etag, one.begin, one.label)
        for number, one in enumerate(found)
    ]


class Noting(Heartbeat):
    """Calls `note` with each unit that is worked on."""

    def __init__(self, note: Callable[[int], None]) -> None:
        super().__init__(bytearray(SIZE))
        self._note = note

    def work(self, unit: Unit) -> None:
        super().work(unit)
        self._note(unit.number)


def one_shard(
    units: Sequence[Unit],
    path: Path,
    number: int = 1,
    capacity: int = 1 << 20,
    lanes: int = 1,
    schema: dict[str, Any] | None = None,
) -> tuple[Open, Units, Grant]:
    """Has a stream of its own, which has the number of the shard, make one shard of these units."""
    stream, shape = StreamId("train", "g", number), Shape(1, 8, lanes, capacity, 0)
    return (
        Open(stream, Cursor(), (), None, shape, schema, ()),
        Units(stream, 0, 0, tuple(units), "end"),
        Grant(stream, number, str(path)),
    )


@dataclass(frozen=True)
class Made:
    """A sealed shard: what was said of it, and both files' bytes; b"" for one that is not there."""

    number: int
    outcome: Sealed
    data: bytes
    sidecar: bytes


@dataclass
class Player:
    """One stream, whose units are its whole source, one block."""

    folder: Path
    dataset: dict[str, Any]
    units: Sequence[Unit]
    shape: Shape
    until: Cursor | None = None
    page: int = 1000
    memory: float = float("inf")
    made: list[Made] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)
    schema: dict[str, Any] | None = None
    stream: StreamId = field(default_factory=lambda: StreamId("train", "g", 0))
    start: Cursor = field(default_factory=Cursor)
    _steps: int = -1
    _serving: asyncio.Task[None] | None = None

    @property
    def cursor(self) -> Cursor:
        return self.made[-1].outcome.after if self.made else self.start

    @property
    def done(self) -> bool:
        return any(made.outcome.end in _ENDS for made in self.made)

    def worker(self) -> Worker:
        setup = Setup({"train": self.dataset}, 8, None, memory=self.memory)
        return Worker(setup, self._heard, Noting(self._mark), RETRY)

    def _mark(self, unit: int) -> None:
        self._steps -= 1
        if self._steps == 0 and self._serving is not None:
            self._serving.cancel()

    def open(self, worker: Worker) -> None:
        """Opens the stream at its cursor in this worker, and grants the next shard."""
        self._worker = worker
        cursor = self.cursor
        self._next = cursor.place
        of_lanes = tuple(self.units[lane.unit] for lane in cursor.lanes)
        worker.receive(Open(self.stream, cursor, of_lanes, self.until, self.shape, self.schema, ()))
        self._granted = len(self.made)
        self.grant()

    def grant(self) -> None:
        number = self.shape.number(self.stream.index, self._granted)
        self._granted += 1
        self._worker.receive(Grant(self.stream, number, str(self.folder / f"{number}.tfrecord")))

    def feed(self) -> None:
        units = tuple(self.units[self._next : self._next + self.page])
        place, self._next = self._next, self._next + len(units)
        more = "listed" if self._next < len(self.units) else "end"
        self._worker.receive(Units(self.stream, 0, place, units, more))

    def _heard(self, message: Any) -> None:
        self.said.append(message)
        match message:
            case Asks():
                asyncio.get_running_loop().call_soon(self.feed)
            case Described(schema=schema):
                self.schema = schema
            case Working(half=True) if self._granted == len(self.made) + 1:
                asyncio.get_running_loop().call_soon(self.grant)
            case Sealed(number=number):
                path = self.folder / f"{number}.tfrecord"
                self.made.append(Made(number, message, _bytes(path), _bytes(Path(f"{path}.idx"))))
                if self._granted == len(self.made) and not self.done:
                    asyncio.get_running_loop().call_soon(self.grant)
            case Failed():
                raise AssertionError(message)

    async def play(self, steps: int = -1) -> None:
        """Until the stream has come to its end, or the worker is killed: after so many changes from one
        unit to another."""
        worker = self.worker()
        self._steps = steps
        self._serving = asyncio.ensure_future(worker.serve())
        try:
            self.open(worker)
            while not (self.done or self._serving.done()):
                await asyncio.sleep(0)
        finally:
            self._serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving
            self._serving = None
            ends = [made.outcome.end in _ENDS for made in self.made]
            if any(ends):  # what was granted ahead is answered too
                del self.made[ends.index(True) + 1 :]

    def leave_traces(self) -> None:
        """What a process that was killed by SIGKILL leaves of its shard in hand."""
        number = self.shape.number(self.stream.index, len(self.made))
        for suffix in ("", ".idx"):
            (self.folder / f"{number}.tfrecord{suffix}").write_bytes(b"left over")


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
