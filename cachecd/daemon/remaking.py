"""Records that are made again from the source: damaged shards, and supplements of a whole dataset."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from cachecd.daemon.carrying import Carrying, Making
from cachecd.daemon.disk_work import DiskWork, generation_of
from cachecd.daemon.feeding import FedGeneration
from cachecd.daemon.listings import GenerationListing
from cachecd.daemon.missing import HeldRecords, held_records
from cachecd.disk import publish
from cachecd.errors import DiskError
from cachecd.listing.table import MOST_AT_ONCE
from cachecd.model import Assignment, Cursor, ShardFacts, ShardId, Skipped, StreamId, Unit
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.values import GenerationId, Piece
from cachecd.sampler.messages import Failed, Made, Make
from cachecd_client._core import Sidecar
from cachecd_client.errors import CorruptError

_log = structlog.get_logger("cachecd.daemon")
_MOST_PIECES = 4096  # of one search

Job = do.MakeSupplement | do.RemakeShard


class MakeExecutor(Protocol):
    """Makes single shards by worker processes."""

    def submit(self, make: Make) -> None:
        """Has a shard made. Exactly one Made or Failed is heard; after Failed no file is left."""


@dataclass(frozen=True, slots=True)
class _Slice:
    """Records of one unit in a damaged shard, by its sidecar."""

    unit: int
    key: str
    begin: int
    etag: str
    record: int
    stop: int


class Remaking:
    """Carries out FindMissing, MakeSupplement, RemakeShard from the source, and CloseStream of supplements.

    `heard` takes the reports of the executor. `fetched` counts bytes of a dataset.
    """

    def __init__(
        self,
        carrying: Carrying,
        work: DiskWork,
        executor: MakeExecutor,
        fetched: Callable[[str, int], None] = lambda dataset, count: None,
    ) -> None:
        self._carrying, self._work, self._executor = carrying, work, executor
        self._fetched = fetched
        self._jobs: dict[ShardId, Job] = {}
        self._sealed: dict[StreamId, int] = {}  # supplements that may not be published yet
        self._closing: set[StreamId] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def carry_out(self, command: Making) -> None:
        """Begins a command. Never blocks."""
        match command:
            case do.FindMissing():
                self._start(command, self._find(command))
            case do.MakeSupplement():
                self._start(command, self._supplement(command))
            case do.RemakeShard():
                self._start(command, self._remake(command))
            case do.CloseStream(stream):
                self._closing.add(stream)
                if not any(self._is_of(job, stream) for job in self._jobs.values()):
                    self._close(stream)

    def heard(self, message: Made | Failed) -> None:
        """A shard is made, or cannot be."""
        job = self._jobs.pop(message.shard, None)
        if isinstance(message, Made):
            self._fetched(message.shard.dataset, message.outcome.fetched_bytes)
        match job:
            case do.MakeSupplement():
                self._supplied(job, message)
            case do.RemakeShard():
                self._carrying.record(lambda: [self._remade(job, message)])

    async def finish(self) -> None:
        """Ends the looks into the listing."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- missing records

    async def _find(self, command: do.FindMissing) -> None:
        fed = self._fed(command.generation)
        listing = self._listing(fed)
        units = await listing.run(lambda: len(listing.table))
        held = await asyncio.to_thread(held_records, fed.layout, units)
        excluded = self._work.excluded_keys(fed.id.dataset)
        pieces: list[Piece] = []
        at = command.begin
        while at < units and len(pieces) < _MOST_PIECES:
            numbers = range(at, min(at + MOST_AT_ONCE, units))
            page = [unit for unit in await listing.units(numbers) if unit is not None]
            pieces += await asyncio.to_thread(HeldRecords.pieces, held, page, excluded)
            at = numbers.stop
        found = ev.MissingFound(command.generation, tuple(pieces), at < units)
        self._carrying.record(lambda: [found])

    # --- supplements

    async def _supplement(self, command: do.MakeSupplement) -> None:
        fed = self._fed(generation_of(command.stream))
        numbers = [piece.unit for piece in command.pieces]
        units = await fed.listing.units(numbers)
        excluded = self._work.excluded_keys(fed.id.dataset)
        slices = tuple(
            replace(unit, record=piece.record, stop=piece.stop or 0)
            for unit, piece in zip(units, command.pieces, strict=True)
            if unit is not None and unit.key not in excluded
        )
        meta = {"stream": command.stream.index, "number": command.number}
        self._submit(fed, command, command.number, 0, slices, meta)

    def _supplied(self, job: do.MakeSupplement, message: Made | Failed) -> None:
        stream, number = job.stream, job.number
        if isinstance(message, Failed):
            failed = ev.Failed(stream, message.cause, message.reason, message.unit, message.passing)
            self._carrying.record(lambda: [failed])
        else:
            outcome = message.outcome
            if outcome.records:
                self._sealed[stream] = number
            facts = ShardFacts(outcome.allocated, outcome.records, outcome.data_bytes)
            skipped = tuple(
                Skipped(each.unit, each.key, 0, 0, each.reason, each.passing)
                for each in outcome.set_aside
            )
            left = tuple(
                Piece(each.number, each.record, each.stop or None) for each in outcome.remainder
            )

            def report() -> list[ev.Event]:
                known = self._work.facts(stream, number, skipped) if outcome.records else facts
                whole = facts._replace(ended=known.ended, digest=known.digest)
                return [ev.Sealed(stream, number, Cursor(), Cursor(), whole, skipped, left)]

            self._carrying.record(report)
        if stream in self._closing:
            self._close(stream)

    def _close(self, stream: StreamId) -> None:
        self._closing.discard(stream)
        number = self._sealed.pop(stream, None)

        def end() -> list[ev.Event]:
            if number is not None:
                self._work.discard(stream, [number])
            return [ev.StreamClosed(stream)]

        self._carrying.record(end)

    # --- damaged shards

    async def _remake(self, command: do.RemakeShard) -> None:
        fed = self._fed(command.generation)
        path = fed.layout.sidecar(command.number, command.version)
        try:
            sidecar = await asyncio.to_thread(Sidecar.read, str(path))
        except (FileNotFoundError, CorruptError) as error:
            failed = ev.RemakeFailed(command.generation, command.number, str(error))
            self._carrying.record(lambda: [failed])
            return
        if command.drop:
            await asyncio.to_thread(publish.drop_data, fed.layout, command.number, command.version)
        held = list(_slices(sidecar))
        excluded = self._work.excluded_keys(fed.id.dataset)
        units = await fed.listing.units(sorted({each.unit for each in held}))
        sizes = {unit.number: unit for unit in units if unit is not None}
        slices = tuple(
            Unit(
                *(each.unit, each.key, sizes[each.unit].size, each.etag, each.begin),
                *(sizes[each.unit].label, each.record),
                stop=each.stop,
            )
            for each in held
            if each.unit in sizes and each.key not in excluded
        )
        meta = json.loads(sidecar.meta)
        for name in ("schema", "remainder"):
            meta.pop(name, None)
        self._submit(fed, command, command.number, command.version + 1, slices, meta)

    def _remade(self, job: do.RemakeShard, message: Made | Failed) -> ev.Event:
        """Publishes the next version, in the thread of writes."""
        generation, number = job.generation, job.number
        if isinstance(message, Failed):
            return ev.RemakeFailed(generation, number, message.reason)
        if not message.outcome.records:
            return ev.RemakeFailed(generation, number, "none of its records can be fetched now")
        try:
            return self._work.publish_version(generation, number, job.version + 1)
        except DiskError as error:
            return ev.DiskRefused(job, str(error))

    # ---

    def _submit(
        self,
        fed: FedGeneration,
        job: Job,
        number: int,
        version: int,
        slices: tuple[Unit, ...],
        meta: dict[str, Any],
    ) -> None:
        assert fed.shape is not None, "the generation has shards"
        shard = ShardId(fed.id.dataset, number)
        meta = {**meta, "dataset": fed.id.dataset, "generation": fed.id.name}
        self._jobs[shard] = job
        self._executor.submit(
            Make(
                Assignment(shard, fed.id.name, slices),
                str(fed.layout.temporary(number, version)),
                fed.shape.capacity,
                fed.schema,
                fed.listing.classes,
                meta,
            )
        )

    def _fed(self, generation: GenerationId) -> FedGeneration:
        return self._carrying.feeding.generations[generation]

    def _listing(self, fed: FedGeneration) -> GenerationListing:
        assert isinstance(fed.listing, GenerationListing)
        return fed.listing

    @staticmethod
    def _is_of(job: Job, stream: StreamId) -> bool:
        return isinstance(job, do.MakeSupplement) and job.stream == stream

    def _start(self, command: Making, work: Coroutine[Any, Any, None]) -> None:
        """Begins work in the listing. What fails is repeated by the policy."""

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.error("records not made again", exc_info=error)
                reason = f"{type(error).__name__}: {error}"
                if isinstance(command, do.MakeSupplement):
                    event: ev.Event = ev.Failed(command.stream, "disk", reason)
                else:
                    event = ev.DiskRefused(command, reason)
                self._carrying.record(lambda: [event])

        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(end)


def _slices(sidecar: Sidecar) -> Iterator[_Slice]:
    """The runs of records of each unit, in the order of their first records."""
    runs: dict[int, list[list[int]]] = {}
    for index, ordinal in zip(sidecar.indices.tolist(), sidecar.ordinals.tolist(), strict=True):
        of_unit = runs.setdefault(index, [])
        if of_unit and of_unit[-1][1] == ordinal:
            of_unit[-1][1] += 1
        else:
            of_unit.append([ordinal, ordinal + 1])
    table: Sequence[tuple[int, bytes, int, bytes]] = sidecar.table
    for index, of_unit in runs.items():
        unit, key, begin, etag = table[index]
        for record, stop in of_unit:
            yield _Slice(unit, _text(key), begin, _text(etag), record, stop)


def _text(encoded: bytes) -> str:
    return encoded.decode("utf-8", "surrogatepass")
