"""A sampler's work on its streams: units -> bytes -> records -> sealed shards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import traceback
from collections import deque
from collections.abc import Callable

from cachecd.config import DatasetConfig
from cachecd.errors import ConfigError, DiskError, SourceUnreachableError
from cachecd.model import StreamId, Unit
from cachecd.sampler.heartbeat import SIZE, Heartbeat
from cachecd.sampler.messages import (
    Close,
    Closed,
    Failed,
    FromStream,
    Grant,
    OfStreams,
    Open,
    Setup,
    Units,
    Until,
)
from cachecd.sampler.origin import Origin
from cachecd.sampler.throttle import Throttle
from cachecd.sampler.worker_stream import WorkerStream
from cachecd.stores.backend import is_shortage
from cachecd.stores.retry import Retry

_HEARTBEAT = 0.25  # seconds


class Worker:
    """Makes shards of the datasets in `setup`, and reports to `send`.

    `mark` gets each stream and each unit before the work on it, so that a crash can be blamed on the unit.
    While the worker is not stuck, `mark` gets a sign of life a few times per second. `link`: see Throttle.
    """

    def __init__(
        self,
        setup: Setup,
        send: Callable[[FromStream], None],
        mark: Heartbeat | None = None,
        retry: Retry | None = None,
        link: int | None = None,
    ) -> None:
        self._setup = setup
        self._send = send
        self._mark = mark or Heartbeat(bytearray(SIZE))
        self._retry = retry
        self._origins: dict[str, Origin] = {}
        self._throttle = Throttle(setup.bandwidth, link)
        self._streams: dict[StreamId, WorkerStream] = {}
        self._current: WorkerStream | None = None
        self._marked: WorkerStream | None = None  # the stream in `mark`
        self._turn: asyncio.Task[None] | None = None  # the current stream's work
        self._inbox: deque[OfStreams] = deque()
        self._wake = asyncio.Event()  # a message has arrived, or the turn has ended

    @property
    def paths(self) -> list[str]:
        """The temporary files of all current shards."""
        return [stream.writing.path for stream in self._streams.values() if stream.writing]

    def prepare(self) -> None:
        """Imports modules and opens the datasets before the first stream. A failure is ignored: it happens
        again in the stream, which reports it."""
        for name in self._setup.datasets:
            with contextlib.suppress(Exception):
                source = self._origin(name).config.source
                if not source.awaits_classes:
                    self._origin(name).read_with(source.classes)

    def _origin(self, name: str) -> Origin:
        if name not in self._origins:
            config = DatasetConfig.model_validate(self._setup.datasets[name])
            self._origins[name] = Origin(
                config, self._setup.connections, self._retry, self._setup.memory
            )
        return self._origins[name]

    def receive(self, message: OfStreams) -> None:
        """Accepts a message of the daemon. `serve` handles the messages in order."""
        self._inbox.append(message)
        self._wake.set()

    async def serve(self) -> None:
        """Handles messages, one shard at a time, forever."""
        heartbeat = asyncio.create_task(self._report_streams())
        try:
            while True:
                self._wake.clear()
                if self._turn is not None and self._turn.done():
                    await self._end_turn(self._turn)
                while self._inbox:
                    await self._handle(self._inbox.popleft())
                if self._turn is None:
                    await self._begin_turn()
                await self._wake.wait()
        finally:
            heartbeat.cancel()
            await self._stop_turn()
            for stream in self._streams.values():
                await stream.close()

    async def _handle(self, message: OfStreams) -> None:
        stream = message.stream
        worker_stream = self._streams.get(stream)
        try:
            match message:
                case Open():
                    await self._close(stream)
                    self._streams[stream] = WorkerStream(
                        message,
                        self._origin(stream.dataset),
                        self._throttle,
                        self._setup.connections,
                        self._send,
                        self._mark.work,
                    )
                case Close():
                    await self._close(stream)
                    self._send(Closed(stream))
                case _ if worker_stream is None:
                    pass  # the stream has failed, but the daemon does not know it yet
                case Units():
                    worker_stream.list_units(message)
                case Until():
                    worker_stream.move_until(message.until)
                case Grant():
                    worker_stream.grant(message)
        except Exception as error:
            await self._fail(stream, error, None)

    def _next(self) -> WorkerStream | None:
        """Returns the stream to work on: the current stream as long as it can continue, or else the next
        stream in turn. Streams with a current shard have priority: during a listing all streams wait for
        units repeatedly, and the first shard should be sealed soon."""
        if self._current is not None and self._current.can_work:
            return self._current
        order = list(self._streams.values())
        if self._current in order:
            at = order.index(self._current) + 1
            order = order[at:] + order[:at]
        workable = (stream for stream in order if stream.can_work)
        return min(workable, key=lambda stream: stream.writing is None, default=None)

    async def _begin_turn(self) -> None:
        stream = self._next()
        if stream is not None and stream is not self._current:
            self._current = stream
            others = [one for one in self._streams.values() if one is not stream]
            if sum(one.buffered for one in others) > self._setup.memory / 2:
                for one in others:
                    await one.release_lanes()
        if stream is not self._marked:
            self._marked = stream
            self._mark.turn(None if stream is None else stream.id)
            if stream is not None and stream.progress.unit is not None:
                self._mark.work(stream.progress.unit)
        if stream is not None:
            self._turn = asyncio.ensure_future(stream.work())
            self._turn.add_done_callback(lambda turn: self._wake.set())

    async def _end_turn(self, turn: asyncio.Task[None]) -> None:
        self._turn = None
        if turn.cancelled() or (error := turn.exception()) is None:
            return
        assert self._current is not None, "a stream had the turn"
        await self._fail(self._current.id, error, self._current.progress.unit)

    async def _stop_turn(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            await asyncio.gather(self._turn, return_exceptions=True)
            self._turn = None

    async def _fail(self, stream: StreamId, error: BaseException, unit: Unit | None) -> None:
        """Closes a stream, and reports the failure."""
        if not isinstance(error, Exception):
            raise error
        if passing := is_shortage(error):
            cause, reason, code = "worker", self._shortage(stream, error), 0
        else:
            cause, reason, code = self._blame(error)
        blamed = (unit.number, passing, unit.key) if unit is not None and cause == "worker" else ()
        await self._close(stream)
        self._send(Failed(stream, cause, reason, code, *blamed))

    def _shortage(self, stream: StreamId, error: Exception) -> str:
        """Returns the message for an error of a process that lacks descriptors, memory or processes."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            count = len(os.listdir("/proc/self/fd")) - 1
        except OSError:  # the listing itself needs a descriptor
            count = limit
        config = DatasetConfig.model_validate(self._setup.datasets[stream.dataset])
        steps = (config.source.reader, *(step.name for step in config.transform))
        user_code = ", ".join(step for step in steps if step and ":" in step)
        return (
            f"the sampler process lacks descriptors, memory or processes ({count} of {limit} descriptors "
            f"are open{user_code and f'; does {user_code} leak?'}): {error}"
        )

    async def _close(self, stream: StreamId) -> None:
        """Closes a stream, if it is open."""
        if (worker_stream := self._streams.pop(stream, None)) is not None:
            if worker_stream is self._current:
                await self._stop_turn()
            await worker_stream.close()

    def _blame(self, error: Exception) -> tuple[str, str, int]:
        """Returns `cause`, `reason` and `code` of Failed."""
        match error:
            # A transform that cannot be imported stops the dataset, like an unreachable source.
            case SourceUnreachableError() | ConfigError():
                return "source", str(error), 0
            case DiskError():
                cause = error.__cause__
                code = cause.errno if isinstance(cause, OSError) else None
                return "disk", str(error), code or 0
            case _:
                traceback.print_exception(error)
                reason = traceback.format_exception_only(error)[-1].strip()
                return "worker", f"{reason}{self._mark.step}", 0

    async def _report_streams(self) -> None:
        """Gives signs of life, and reports progress. Silence would mean that the worker hangs."""
        while True:
            await asyncio.sleep(_HEARTBEAT)
            self._mark.beat()
            if self._turn is not None and self._current is not None:
                self._current.report()
