"""Streams in workers: gives them units, grants and `until`, and turns their reports into events.

A worker asks for units; a page is read from the listing in the listing's thread. Each stream has an outbox,
because its first message needs a look into the listing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from cachecd.daemon.background import Background
from cachecd.daemon.disk_work import DiskWork, generation_of
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
_RETRY = 1.0  # seconds until a read of the listing that the disk refused is repeated

Result = TypeVar("Result")
UnitsOrNone = tuple[Unit | None, ...]


@dataclass(slots=True)
class FedGeneration:
    """A configured generation whose streams may be fed. `schema` is set once it is known."""

    id: GenerationId
    layout: GenerationLayout
    listing: GenerationListing
    schema: dict[str, Any] | None = None
    shape: Shape | None = None
    describing: StreamId | None = None
    """The stream that finds the schema; the others wait for it."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class OneShard:
    """A stream that ends with one shard, of the units or parts of units that `read` returns from the
    listing. A shard without a record is removed. `parts`, `remade`: as of Open. `report` makes an
    event of the end, in the thread of writes; None: the end is reported as of any stream."""

    grant: Grant
    read: Callable[[], Awaitable[UnitsOrNone]]
    parts: tuple[tuple[int, int, int, int], ...] = ()
    remade: dict[str, Any] | None = None
    report: Callable[[Sealed | Failed], ev.Event] | None = None


@dataclass(eq=False, slots=True)
class _Stream:
    """One stream from Open to Close. `place`: the place after the last unit that was sent. `more`: the
    worker's knowledge of the units after it. `fetched`: bytes that were counted."""

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
    """`record` does a job in the thread of writes, and delivers its events: so the reports of a stream
    become events in order. `described` stores a schema; `fetched` counts bytes of a dataset."""

    def __init__(
        self,
        executor: Executor,
        work: DiskWork,
        background: Background,
        record: Callable[[Callable[[], list[ev.Event]]], None],
        described: Callable[[GenerationId, dict[str, Any]], None],
        fetched: Callable[[str, int], None],
    ) -> None:
        self.generations: dict[GenerationId, FedGeneration] = {}
        self._executor, self._work, self._background = executor, work, background
        self._record, self._described, self._fetched = record, described, fetched
        self._streams: dict[StreamId, _Stream] = {}
        self._sealed: dict[StreamId, set[int]] = {}
        # By Close that is not answered: whether the policy waits for the answer.
        self._closes: dict[StreamId, list[bool]] = {}

    # --- commands

    def open(self, command: do.OpenStream) -> None:
        """Opens a stream. A stream that is open begins again."""
        if command.stream in self._streams:
            self._close(command.stream, awaited=False)
        stream = _Stream(command.stream, (command.cursor.block, command.cursor.place))
        self._begin(stream, command)

    def make(self, only: OneShard) -> None:
        """Opens a stream that ends with one shard."""
        name = only.grant.stream
        self._begin(_Stream(name, more="end", only=only), do.OpenStream(name, Cursor(), Cursor(1)))

    def _begin(self, stream: _Stream, command: do.OpenStream) -> None:
        self._streams[stream.id] = stream
        self._start(stream, self._open(stream, command))

    def send(self, command: do.SetUntil | do.GrantShard) -> None:
        """Makes an open stream continue."""
        if (stream := self._streams.get(command.stream)) is None:
            return  # it failed, and the policy gets that event
        match command:
            case do.SetUntil(name, until):
                self._send(stream, Until(name, until))
            case do.GrantShard(name, number):
                self._send(stream, Grant(name, number))

    def close(self, command: do.CloseStream) -> None:
        """Takes a stream from its worker."""
        self._close(command.stream, awaited=True)

    def published(self, stream: StreamId, number: int) -> None:
        """A shard of a stream is published."""
        self._sealed.get(stream, set()).discard(number)

    def wake(self, name: GenerationId) -> None:
        """The listing has continued: waiting streams get more units."""
        for stream in list(self._streams.values()):
            if generation_of(stream.id) != name:
                continue
            stream.woken = stream.reading  # the page that is being read may be older
            if stream.more == "wait":
                self._feed(stream)

    def finish(self) -> None:
        """Sends nothing any more."""
        self._streams.clear()

    # --- reports

    def heard(self, message: FromStream) -> None:
        """Handles a report of a worker."""
        name = message.stream
        stream = self._streams.get(name)
        match message:
            case Asks():
                if stream is not None and stream.opened and stream.more == "listed":
                    self._feed(stream)
            case Described(schema=schema):
                self._learn(name, schema)
            case Working(number=number, fetched_bytes=fetched, half=half):
                self._count(stream, fetched)
                if half:
                    self._record(lambda: [ev.HalfFull(name, number)])
            case Sealed():
                self._sealed_one(stream, message)
            case Closed():
                self._closed(name)
            case Failed():
                self._failed(stream, message)

    def _closed(self, name: StreamId) -> None:
        """A worker has closed a stream, and reports nothing more about it."""
        if not self._closes[name].pop(0):
            return
        sealed = self._sealed.pop(name, set())

        def end() -> list[ev.Event]:
            self._work.discard(name, sorted(sealed))
            return [ev.StreamClosed(name)]

        self._record(end)

    def _count(self, stream: _Stream | None, fetched: int) -> None:
        """Counts fetched bytes; `fetched`: of the stream since it was opened."""
        if stream is not None and fetched > stream.fetched:
            self._fetched(stream.id.dataset, fetched - stream.fetched)
            stream.fetched = fetched

    def _sealed_one(self, stream: _Stream | None, message: Sealed) -> None:
        name, number, skipped = message.stream, message.number, message.skipped
        has_file = message.before != message.after or bool(skipped)
        only = None if stream is None else stream.only
        report = None if only is None else only.report
        self._count(stream, message.fetched_bytes)
        if only is not None:
            self._close(name, awaited=False)
            if not message.records:
                discard(
                    str(self._work.of(generation_of(name)).temporary(number, only.grant.version))
                )
                has_file = False
        if generation := self.generations.get(generation_of(name)):
            self._end_describing(generation, name)
        if has_file and report is None:
            self._sealed.setdefault(name, set()).add(number)

        def end() -> list[ev.Event]:
            if report is not None:
                return [report(message)]
            self._work.note_skipped(name, number, message.passed, skipped)
            counts = message.allocated, message.records, message.data_bytes, message.ended
            facts = ShardFacts(*counts, message.digest, passed=message.num_passed)
            sealed = name, number, message.before, message.after, facts, skipped
            return [ev.ShardSealed(*sealed, message.misfits, message.misfit)]

        self._record(end)

    def _failed(self, stream: _Stream | None, message: Failed) -> None:
        self._forget(message.stream)
        only = None if stream is None else stream.only
        report = None if only is None else only.report

        def end() -> list[ev.Event]:
            if report is not None:
                return [report(message)]
            cause, unit = message.cause, message.unit
            return [ev.StreamFailed(message.stream, cause, message.reason, unit, message.passing)]

        self._record(end)

    def _learn(self, name: StreamId, schema: dict[str, Any]) -> None:
        generation = self.generations.get(generation_of(name))
        if generation is not None and generation.schema is None:
            generation.schema = schema
            self._described(generation.id, schema)
            self._end_describing(generation, name)

    # --- messages to a worker

    async def _open(self, stream: _Stream, command: do.OpenStream) -> None:
        generation, only = self.generations[generation_of(stream.id)], stream.only
        numbers = [lane.unit for lane in command.cursor.lanes]
        listed = await self._read(stream, lambda: generation.listing.units(numbers))
        if listed is None:
            return
        excluded = self._work.excluded.of(generation.id.dataset)
        units = tuple(less_excluded(unit, excluded) for unit in listed)
        if only is not None:
            if (given := await self._read(stream, only.read)) is None:
                return
            stream.outbox = [Units(stream.id, 0, 0, given, "end"), only.grant]

        def first() -> Open:
            assert generation.shape is not None, "streams open after their shape is fixed"
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

    def _send(self, stream: _Stream, message: OfStreams) -> None:
        if stream.opened:
            self._executor.send(message)
        else:
            stream.outbox.append(message)

    def _feed(self, stream: _Stream) -> None:
        if not stream.reading:
            stream.reading = True
            self._start(stream, self._page(self.generations[generation_of(stream.id)], stream))

    async def _page(self, generation: FedGeneration, stream: _Stream) -> None:
        """Sends the next page of units, if there is one, or if the worker does not know yet what
        follows."""
        listing, shape = generation.listing, generation.shape
        assert shape is not None, "the stream is open"
        is_first = listing.is_first  # before the page: units that are listed meanwhile follow
        excluded = self._work.excluded.of(stream.id.dataset)
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
        """Reads the listing, and repeats the call while the disk refuses. None: the stream was closed or
        opened again meanwhile, or the listing is damaged."""
        while self._streams.get(stream.id) is stream:
            try:
                result = await read()
            except DamagedError:
                return None  # until the next start
            except DiskError as error:
                _log.warning("listing not read", stream=str(stream.id), why=str(error))
                await asyncio.sleep(_RETRY)
                continue
            return result if self._streams.get(stream.id) is stream else None
        return None

    def _forget(self, name: StreamId) -> None:
        self._streams.pop(name, None)
        if generation := self.generations.get(generation_of(name)):
            self._end_describing(generation, name)

    def _end_describing(self, generation: FedGeneration, name: StreamId) -> None:
        if generation.describing == name:
            generation.describing = None
            generation.changed.set()
            generation.changed = asyncio.Event()

    def _close(self, name: StreamId, *, awaited: bool) -> None:
        self._closes.setdefault(name, []).append(awaited)
        self._forget(name)
        self._executor.send(Close(name))

    def _start(self, stream: _Stream, work: Coroutine[Any, Any, None]) -> None:
        """Begins work in the listing. A defect fails the stream."""

        def failed(error: BaseException) -> None:
            _log.error("stream not fed", stream=str(stream.id), exc_info=error)
            if self._streams.get(stream.id) is stream:
                self._close(stream.id, awaited=False)
                reason = f"{type(error).__name__}: {error}"
                self._failed(stream, Failed(stream.id, "worker", reason))

        self._background.start(work, failed)
