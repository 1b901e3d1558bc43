"""A sampler's work, streams and single shards: units -> bytes -> records -> sealed shards."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections import deque
from collections.abc import Callable

from cachecd.config import DatasetConfig
from cachecd.errors import ConfigError, DiskError, SourceUnreachableError
from cachecd.model import MOST_LANES, Outcome, SetAside, ShardId, StreamId, Unit
from cachecd.sampler.carried import Carried
from cachecd.sampler.draft import Draft, Sealed, remainder_text
from cachecd.sampler.filling import Filling
from cachecd.sampler.messages import (
    Close,
    Closed,
    Described,
    Failed,
    FromSampler,
    FromStream,
    Grant,
    Made,
    Make,
    OfStreams,
    Open,
    Setup,
    StreamFailed,
    Units,
    Until,
    Working,
)
from cachecd.sampler.origin import Origin, Progress, Reader
from cachecd.sampler.supply import Supply
from cachecd.sampler.throttle import Throttle
from cachecd.stores.patience import Retry
from cachecd_client.schema import Schema

_HEARTBEAT = 0.25  # seconds between two Working messages


class Worker:
    """Makes shards of the datasets in `setup`, reporting to `send`.

    `mark` is told each unit before it is worked on, so that a crash can be blamed on it; `failed`, each
    exception that costs a unit, the assignment or the stream, of which the messages have the text alone.
    `link` is what this process shares its bandwidth by (throttle.py), None if it has it alone. `turn` is
    told each stream that is turned to, before its units, and None when no stream is worked on. `beat` is
    called a few times a second while this is not stuck.
    """

    def __init__(
        self,
        setup: Setup,
        send: Callable[[FromSampler | FromStream], None],
        mark: Callable[[int], None] = lambda unit: None,
        retry: Retry | None = None,
        failed: Callable[[Exception], None] = lambda error: None,
        link: int | None = None,
        turn: Callable[[StreamId | None], None] = lambda stream: None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._setup = setup
        self._send = send
        self._mark = mark
        self._turns_to = turn
        self._beat = beat
        self._retry = retry
        self._failed = failed
        self._datasets: dict[str, Origin] = {}
        self._throttle = Throttle(setup.bandwidth, link)
        self._path: str | None = None  # of the assignment in hand
        self._makes: deque[Make] = deque()
        self._streams: dict[StreamId, Carried] = {}
        self._current: Carried | None = None
        self._marked: Carried | None = None  # the stream that `turn` was told last
        self._turn: asyncio.Task[None] | None = None  # the current stream's work
        self._closing: dict[asyncio.Task[None], StreamId] = {}
        # By stream that is being closed: what came for it meanwhile.
        self._held_back: dict[StreamId, list[OfStreams]] = {}
        self._wake = asyncio.Event()

    @property
    def paths(self) -> list[str]:
        """The temporary files of all shards in hand."""
        writing = [stream.writing.path for stream in self._streams.values() if stream.writing]
        return [*writing, *([self._path] if self._path else [])]

    def prepare(self) -> None:
        """Imports and opens what the datasets need, ahead of the first assignment; what fails here
        fails there, with its reason."""
        for name in self._setup.datasets:
            with contextlib.suppress(Exception):
                dataset = self._dataset(name)
                if not dataset.config.source.awaits_classes:
                    dataset.read_with(dataset.config.source.classes)

    def _dataset(self, name: str) -> Origin:
        if name not in self._datasets:
            config = DatasetConfig.model_validate(self._setup.datasets[name])
            self._datasets[name] = Origin(
                config, self._setup.connections, self._retry, self._setup.memory
            )
        return self._datasets[name]

    # --- streams

    def receive(self, message: Make | OfStreams) -> None:
        """Takes a message of the daemon; `serve` does what it says."""
        if not isinstance(message, Make) and message.stream in self._held_back:
            self._held_back[message.stream].append(message)
            return
        match message:
            case Make():
                self._makes.append(message)
            case Open(stream=stream):
                self._close(stream)
                self._guard(stream, lambda: self._open(message))
            case Close(stream=stream):
                self._close(stream, Closed(stream))
            case Units(stream=stream) if stream in self._streams:
                self._guard(stream, lambda: self._streams[stream].list_units(message))
            case Until(stream=stream, until=until) if stream in self._streams:
                self._streams[stream].move_until(until)
            case Grant(stream=stream) if stream in self._streams:
                self._streams[stream].grant(message)
            case _:
                pass  # the stream has failed, and its daemon does not know yet
        self._wake.set()

    async def serve(self) -> None:
        """Does what it is told, one shard at a time, for ever."""
        heartbeat = asyncio.create_task(self._report_streams())
        try:
            while True:
                self._wake.clear()
                if self._closing:  # their files may be granted again
                    await asyncio.wait(self._closing)
                elif self._makes:
                    self._turn_to(None)
                    self._send(await self.make(self._makes.popleft()))
                elif (stream := self._next()) is not None:
                    await self._work(stream)
                else:
                    self._turn_to(None)
                    await self._wake.wait()
        finally:
            heartbeat.cancel()
            for stream in self._streams.values():
                await stream.close()

    def _next(self) -> Carried | None:
        """The stream to be worked on: the current one as long as it can go on, else the next in turn."""
        if self._current is not None and self._current.can_work:
            return self._current
        order = list(self._streams.values())
        if self._current in order:
            at = order.index(self._current) + 1
            order = order[at:] + order[:at]
        return next((stream for stream in order if stream.can_work), None)

    def _turn_to(self, stream: Carried | None) -> None:
        """Says what is worked on from now on."""
        if stream is self._marked:
            return
        self._marked = stream
        self._turns_to(None if stream is None else stream.id)
        if stream is not None and stream.progress.unit is not None:
            self._mark(stream.progress.unit)

    async def _work(self, stream: Carried) -> None:
        if stream is not self._current:
            self._current = stream
            others = [one for one in self._streams.values() if one is not stream]
            if sum(one.held for one in others) > self._setup.memory / 2:
                for one in others:
                    await one.let_go()
        self._turn_to(stream)
        self._turn = asyncio.ensure_future(stream.work())
        try:
            await asyncio.wait({self._turn})
            if not self._turn.cancelled() and (error := self._turn.exception()) is not None:
                self._fail(stream.id, error, stream.progress.unit)
        finally:
            turn, self._turn = self._turn, None
            if turn.cancel():
                await asyncio.wait({turn})

    def _open(self, message: Open) -> None:
        self._streams[message.stream] = Carried(
            message,
            self._dataset(message.stream.dataset),
            self._throttle,
            self._setup.connections,
            self._send,
            self._mark,
            self._failed,
        )

    def _guard(self, stream: StreamId, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            self._fail(stream, error, None)

    def _fail(self, stream: StreamId, error: BaseException, unit: int | None) -> None:
        """Closes a stream and reports why."""
        if not isinstance(error, Exception):
            raise error
        cause, reason, code = self._blame(error)
        unit = unit if cause == "worker" else None
        self._close(stream, StreamFailed(stream, cause, reason, code, unit))

    def _close(self, stream: StreamId, report: Closed | StreamFailed | None = None) -> None:
        """Closes a stream, if it is open, and then sends this; what comes for it meanwhile is held back."""
        carried = self._streams.pop(stream, None)
        if carried is None and report is None:
            return
        turn = self._turn if carried is not None and carried is self._current else None
        earlier = {task for task, closing in self._closing.items() if closing == stream}
        if report is not None:
            self._held_back[stream] = []

        async def close() -> None:
            if earlier:
                await asyncio.wait(earlier)
            if turn is not None:
                turn.cancel()
                await asyncio.wait({turn})
            if carried is not None:
                await carried.close()

        def closed(task: asyncio.Task[None]) -> None:
            del self._closing[task]
            if report is None or task.cancelled():
                return
            self._send(report)
            for message in self._held_back.pop(stream):
                self.receive(message)

        task = asyncio.ensure_future(close())
        self._closing[task] = stream
        task.add_done_callback(closed)

    def _blame(self, error: Exception) -> tuple[str, str, int]:
        """What is at fault (as Failed has it), why, and the number of an error of the disk."""
        match error:
            # A transform that cannot be imported stops the dataset as a source does that is not there.
            case SourceUnreachableError() | ConfigError():
                self._failed(error)
                return "source", str(error), 0
            case DiskError():
                cause = error.__cause__
                code = cause.errno if isinstance(cause, OSError) else None
                return "disk", str(error), code or 0
            case _:
                self._failed(error)
                traceback.print_exception(error)
                return "worker", traceback.format_exception_only(error)[-1].strip(), 0

    async def _report_streams(self) -> None:
        """Reports progress now and then: silence means that something hangs."""
        while True:
            await asyncio.sleep(_HEARTBEAT)
            if self._path is not None:
                continue  # what a single shard says is enough
            self._beat()
            if self._turn is not None and self._current is not None:
                self._current.report()

    # --- single shards

    async def make(self, make: Make) -> Made | Failed:
        """Does one assignment: a stream of its units that ends with its first shard. Failed: nothing is
        left on disk."""
        shard = make.assignment.shard
        began = time.monotonic()
        self._path = make.path
        draft = Draft(
            make.path,
            make.capacity,
            Schema.from_json(make.schema) if make.schema else None,
            lambda schema: self._send(Described(shard, schema.to_json())),
            make.meta,
            make.classes,
        )
        progress = Progress()
        heartbeat = asyncio.create_task(self._report(shard, progress))
        try:
            remainder, set_aside = await self._fill(make, draft, progress)
            sealed = Sealed()
            if draft.records:
                sealed = await asyncio.to_thread(draft.seal, remainder_text(remainder))
            return Made(
                shard,
                Outcome(
                    records=sealed.records,
                    data_bytes=sealed.data_bytes,
                    sidecar_bytes=sealed.sidecar_bytes,
                    allocated=sealed.allocated,
                    fetched_bytes=progress.fetched_bytes,
                    seconds=time.monotonic() - began,
                    remainder=remainder,
                    set_aside=set_aside,
                ),
            )
        except Exception as error:
            cause, reason, code = self._blame(error)
            unit = progress.unit if cause == "worker" else None
            return Failed(shard, cause, reason, code, unit)
        finally:
            heartbeat.cancel()
            draft.abort()
            self._path = None

    async def _fill(
        self, make: Make, draft: Draft, progress: Progress
    ) -> tuple[tuple[Unit, ...], tuple[SetAside, ...]]:
        """Adds units to the draft until it is full; returns what did not fit, and what cannot be used."""
        dataset = self._dataset(make.assignment.shard.dataset)
        source = dataset.read_with(make.classes)
        units = make.assignment.units
        # A unit of `files` is one record, and units come in a random order: nothing is to be mixed.
        lanes = 1 if dataset.config.source.format == "files" else MOST_LANES
        lanes = max(1, min(lanes, len(units)))

        def work(unit: int) -> None:
            if progress.unit != unit:
                progress.unit = unit
                self._mark(unit)

        supply = Supply(
            dataset,
            source,
            Reader(dataset.store, self._throttle, progress),
            make.capacity,
            lanes if any(map(dataset.streams, units)) else 1,
            self._setup.connections,
            lambda: draft.room,
            lambda: draft.num_bytes,
            work,
            self._failed,
        )
        filling = Filling(supply, lanes)
        filling.feed(0, 0, units, "end")
        try:
            await filling.fill(draft)
            remainder = filling.left()
        finally:
            supply.close()
            await filling.let_go()
        assert filling.part is not None, "a shard was filled"
        skipped = filling.part.skipped
        return remainder, tuple(SetAside(s.unit, s.key, s.reason, s.passing) for s in skipped)

    async def _report(self, shard: ShardId, progress: Progress) -> None:
        """Says now and then how far it is: silence means that something hangs."""
        while True:
            await asyncio.sleep(_HEARTBEAT)
            if progress.unit is not None:
                self._send(Working(shard, progress.fetched_bytes, progress.unit))
