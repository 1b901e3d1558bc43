"""Sends units, grants and `until` to the streams in workers, and turns their reports into events.

When a worker requests units, the daemon reads a page from the listing, in the listing's thread. Each stream
has an outbox, because Open can be sent only after its units are read from the listing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from cachecd.daemon.background import Background
from cachecd.daemon.disk_work import DiskWork, generation_of
from cachecd.daemon.ingest import Ingest
from cachecd.daemon.listings import GenerationListing
from cachecd.disk.layout import GenerationLayout
from cachecd.errors import DamagedError, DiskError
from cachecd.executors import Executor
from cachecd.model import Cursor, More, Place, Shape, ShardFacts, StreamId, Unit, less_excluded
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.values import GenerationId
from cachecd.sampler.draft import discard
from cachecd.sampler.messages import (
    Asks,
    Close,
    Closed,
    Described,
    Failed,
    FromStream,
    Grant,
    OfStreams,
    Open,
    Sealed,
    Units,
    Until,
    Working,
)

_log = structlog.get_logger("cachecd.daemon")
_RETRY = 1.0  # seconds until the daemon repeats a read of the listing that the disk refused

Result = TypeVar("Result")
UnitsOrNone = tuple[Unit | None, ...]


@dataclass(slots=True)
class FedGeneration:
    """A configured generation, whose streams get units. `schema` is None until it is known. `describing`:
    the stream whose first record decides the schema; the other streams wait for it."""

    id: GenerationId
    layout: GenerationLayout
    listing: GenerationListing
    schema: dict[str, Any] | None = None
    shape: Shape | None = None
    describing: StreamId | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class OneShard:
    """A stream that makes one shard. `read` reads its units, or parts of units, from the listing. A shard
    without a record is removed. `parts` and `remade`: see Open. `report` turns the last report of the
    worker into an event, in the thread of writes. None: the stream is reported like any other stream."""

    grant: Grant
    read: Callable[[], Awaitable[UnitsOrNone]]
    parts: tuple[tuple[int, int, int, int], ...] = ()
    remade: dict[str, Any] | None = None
    report: Callable[[Sealed | Failed], ev.Event] | None = None


@dataclass(eq=False, slots=True)
class _Stream:
    """One stream from Open to Close. `place`: the place after the last unit that was sent. `more`: what the
    worker knows about later units. `reading`: a page is being read. `woken`: the listing has grown since
    that read began. `fetched`: the bytes that were counted."""

    id: StreamId
    place: Place = (0, 0)
    more: More = "listed"
    opened: bool = False
    reading: bool = False
    woken: bool = False
    fetched: int = 0
    outbox: list[OfStreams] = field(default_factory=list)
    only: OneShard | None = None


class WorkerStreams:
    """`record` does a job in the thread of writes, and delivers its events, so that the reports of a stream
    become events in order. `described` stores a schema. `ingest` adds up bytes and work."""

    def __init__(
        self,
        executor: Executor,
        work: DiskWork,
        background: Background,
        record: Callable[[Callable[[], list[ev.Event]]], None],
        described: Callable[[GenerationId, dict[str, Any]], None],
        ingest: Ingest,
    ) -> None:
        self.generations: dict[GenerationId, FedGeneration] = {}
        self._executor, self._work, self._background = executor, work, background
        self._record, self._described, self._ingest = record, described, ingest
        self._streams: dict[StreamId, _Stream] = {}
        self._sealed: dict[StreamId, set[int]] = {}
        # For each Close without a Closed: whether the policy waits for StreamClosed.
        self._closes: dict[StreamId, list[bool]] = {}

    # --- commands

    def open(self, command: do.OpenStream) -> None:
        """Opens a stream. A stream that is open starts again at the cursor."""
        if command.stream in self._streams:
            self.close(command.stream)
        stream = _Stream(command.stream, (command.cursor.block, command.cursor.place))
        self._begin(stream, command)

    def make(self, only: OneShard) -> None:
        """Opens a stream that makes one shard."""
        name = only.grant.stream
        self._begin(_Stream(name, more="end", only=only), do.OpenStream(name, Cursor(), Cursor(1)))

    def _begin(self, stream: _Stream, command: do.OpenStream) -> None:
        self._streams[stream.id] = stream
        self._start(stream, self._open(stream, command))

    def send(self, command: do.SetUntil | do.GrantShard) -> None:
        """Sends a command to an open stream. A command to a stream that failed is dropped."""
        if (stream := self._streams.get(command.stream)) is None:
            return
        message = Grant(*command) if isinstance(command, do.GrantShard) else Until(*command)
        if stream.opened:
            self._executor.send(message)
        else:
            stream.outbox.append(message)

    def close(self, name: StreamId, *, is_awaited: bool = False) -> None:
        """Takes a stream from its worker. `is_awaited`: the policy waits for StreamClosed."""
        self._closes.setdefault(name, []).append(is_awaited)
        self._forget(name)
        self._executor.send(Close(name))

    def published(self, stream: StreamId, number: int) -> None:
        """Notes that a sealed shard is published."""
        self._sealed.get(stream, set()).discard(number)

    def wake(self, name: GenerationId) -> None:
        """Sends new units to the waiting streams. The listing calls this when it has grown."""
        for stream in list(self._streams.values()):
            if generation_of(stream.id) != name:
                continue
            stream.woken = stream.reading  # the page that is being read may be older
            if stream.more == "wait":
                self._feed(stream)

    def finish(self) -> None:
        """Ends all streams. Nothing is sent afterwards."""
        self._streams.clear()

    # --- reports

    def handle(self, message: FromStream) -> None:
        """Handles a report of a worker."""
        name = message.stream
        stream = self._streams.get(name)
        match message:
            case Asks():
                if stream is not None and stream.opened and stream.more == "listed":
                    self._feed(stream)
            case Described(schema=schema):
                generation = self.generations[generation_of(name)]
                if generation.schema is None:
                    generation.schema = schema
                    self._described(generation.id, schema)
                    self._end_describing(name)
            case Working(number=number, half=half):
                self._count(stream, message)
                if half:
                    self._record(lambda: [ev.HalfFull(name, number)])
            case Sealed():
                self._seal(stream, message)
            case Closed():
                self._closed(name)
            case Failed():
                self._failed(stream, message)

    def _closed(self, name: StreamId) -> None:
        if not self._closes[name].pop(0):
            return
        sealed = self._sealed.pop(name, set())

        def end() -> list[ev.Event]:
            self._work.discard(name, sorted(sealed))
            return [ev.StreamClosed(name)]

        self._record(end)

    def _count(self, stream: _Stream | None, message: Working | Sealed) -> None:
        """Counts fetched bytes, which the message counts since the stream was opened, and work."""
        if stream is not None and message.fetched_bytes > stream.fetched:
            self._ingest.count(stream.id.dataset, message.fetched_bytes - stream.fetched)
            stream.fetched = message.fetched_bytes
        if message.effort is not None:
            self._ingest.add(message.stream.dataset, message.effort)

    def _seal(self, stream: _Stream | None, message: Sealed) -> None:
        name, number, skipped = message.stream, message.number, message.skipped
        has_file = message.before != message.after or bool(skipped)
        only = None if stream is None else stream.only
        self._count(stream, message)
        if only is not None:
            self.close(name)
            if not message.records:
                layout = self._work.layout_of(generation_of(name))
                discard(str(layout.temporary(number, only.grant.version)))
                has_file = False
        self._end_describing(name)
        if has_file and (only is None or only.report is None):
            self._sealed.setdefault(name, set()).add(number)

        def end() -> list[ev.Event]:
            self._work.note_skipped(name, number, message.passed, skipped)
            counts = message.allocated, message.records, message.data_bytes, message.ended
            facts = ShardFacts(*counts, message.digest, passed=message.num_passed)
            sealed = name, number, message.before, message.after, facts, skipped
            return [ev.ShardSealed(*sealed, message.misfits, message.misfit)]

        self._report(stream, message, end)

    def _failed(self, stream: _Stream | None, message: Failed) -> None:
        self._forget(message.stream)
        cause, unit = message.cause, message.unit
        event = ev.StreamFailed(message.stream, cause, message.reason, unit, message.passing)
        self._report(stream, message, lambda: [event])

    def _report(
        self, stream: _Stream | None, end: Sealed | Failed, job: Callable[[], list[ev.Event]]
    ) -> None:
        report = stream.only.report if stream is not None and stream.only is not None else None
        self._record(job if report is None else lambda: [report(end)])

    # --- messages to a worker

    async def _open(self, stream: _Stream, command: do.OpenStream) -> None:
        generation, only = self.generations[generation_of(stream.id)], stream.only
        numbers = [lane.unit for lane in command.cursor.lanes]
        listed = await self._read(stream, lambda: generation.listing.units(numbers))
        if listed is None:
            return
        excluded = self._work.excluded.excluded_from(generation.id.dataset)
        units = tuple(less_excluded(unit, excluded) for unit in listed)
        if only is not None:
            if (given := await self._read(stream, only.read)) is None:
                return
            stream.outbox = [Units(stream.id, 0, 0, given, "end"), only.grant]

        def first() -> Open:
            assert generation.shape is not None, "streams open after the shape is fixed"
            return Open(
                *(stream.id, command.cursor, units, command.until, generation.shape),
                *(generation.schema, generation.listing.classes, command.condemned),
                *((), None) if only is None else (only.parts, only.remade),
            )

        while generation.schema is None and generation.describing not in (None, stream.id):
            await generation.changed.wait()
            if self._streams.get(stream.id) is not stream:
                return
        if generation.schema is None:
            generation.describing = stream.id
        stream.opened = True
        self._executor.send(first())
        for message in stream.outbox:
            self._executor.send(message)
        stream.outbox.clear()

    def _feed(self, stream: _Stream) -> None:
        if not stream.reading:
            stream.reading = True
            self._start(stream, self._page(self.generations[generation_of(stream.id)], stream))

    async def _page(self, generation: FedGeneration, stream: _Stream) -> None:
        """Sends the next page of units, unless the page is empty and the worker knows already what
        follows."""
        listing, shape = generation.listing, generation.shape
        assert shape is not None, "the stream is open"
        is_first = listing.is_first  # before the page: it may lack units that are listed meanwhile
        excluded = self._work.excluded.excluded_from(stream.id.dataset)
        page = await self._read(
            stream, lambda: listing.page(shape, stream.id.index, stream.place, excluded)
        )
        stream.reading = False
        if page is None:
            return
        more: More = "wait" if page.more == "end" and is_first else page.more
        if page.units or more != stream.more:
            stream.place, stream.more = (page.block, page.place + len(page.units)), more
            self._executor.send(Units(stream.id, page.block, page.place, page.units, more))
        woken, stream.woken = stream.woken, False
        if more == "wait" and woken:
            self._feed(stream)

    async def _read(self, stream: _Stream, read: Callable[[], Awaitable[Result]]) -> Result | None:
        """Reads the listing, and repeats the call while the disk refuses. Returns None if the stream was
        closed or opened again meanwhile, or if the listing is damaged."""
        while self._streams.get(stream.id) is stream:
            try:
                result = await read()
            except DamagedError:
                return None  # the next start lists the source again
            except DiskError as error:
                _log.warning("listing not read", stream=str(stream.id), why=str(error))
                await asyncio.sleep(_RETRY)
                continue
            return result if self._streams.get(stream.id) is stream else None
        return None

    def _forget(self, name: StreamId) -> None:
        self._streams.pop(name, None)
        self._end_describing(name)

    def _end_describing(self, name: StreamId) -> None:
        generation = self.generations.get(generation_of(name))
        if generation is not None and generation.describing == name:
            generation.describing = None
            generation.changed.set()
            generation.changed = asyncio.Event()

    def _start(self, stream: _Stream, work: Coroutine[Any, Any, None]) -> None:
        """Starts work for a stream. An unexpected error fails the stream."""

        def failed(error: BaseException) -> None:
            _log.error("stream gets no units", stream=str(stream.id), exc_info=error)
            if self._streams.get(stream.id) is stream:
                self.close(stream.id)
                reason = f"{type(error).__name__}: {error}"
                self._failed(stream, Failed(stream.id, "worker", reason))

        self._background.start(work, failed)
