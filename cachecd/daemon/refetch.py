"""Fetches the missing records of a whole dataset, and the records of damaged shards. A separate
stream makes each shard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from cachecd.daemon.background import Background
from cachecd.daemon.cached_records import cached_records
from cachecd.daemon.disk_work import DiskWork, generation_of
from cachecd.daemon.worker_streams import FedGeneration, OneShard, UnitsOrNone, WorkerStreams
from cachecd.disk import publish
from cachecd.disk.sidecar import END, SidecarHead, is_lost, read_whole
from cachecd.errors import DiskError
from cachecd.listing.table import MOST_AT_ONCE
from cachecd.model import StreamId, Unit, less_excluded
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.values import Piece
from cachecd.sampler.messages import Failed, Grant, Sealed
from cachecd_client._core import Sidecar

_log = structlog.get_logger("cachecd.daemon")
_MOST_PIECES = 4096  # in the result of one search


class Refetch:
    """Carries out FindMissing, MakeSupplement, and RemakeShard from the source. No method blocks. `record`:
    see WorkerStreams."""

    def __init__(
        self,
        work: DiskWork,
        streams: WorkerStreams,
        background: Background,
        record: Callable[[Callable[[], list[ev.Event]]], None],
    ) -> None:
        self._work, self._streams, self._record = work, streams, record
        self._background = background

    # --- missing records

    def find(self, command: do.FindMissing) -> None:
        """Finds the missing records."""
        self._start(command, self._find(command))

    async def _find(self, command: do.FindMissing) -> None:
        fed = self._streams.generations[command.generation]
        listing = fed.listing
        units = await listing.run(lambda: len(listing.table))
        proceed = self._work.proceed
        cached = await asyncio.to_thread(cached_records, fed.layout, command.shards, units, proceed)
        if cached.lost:  # their records would seem to be missing, and would be cached twice
            reports = [ev.ShardLost(command.generation, *name) for name in cached.lost]
            nothing = ev.MissingFound(command.generation, (), False)
            self._record(lambda: [*reports, nothing])
            return
        excluded = self._work.excluded.excluded_from(fed.id.dataset)
        pieces: list[Piece] = []
        at = command.begin
        while at < units and len(pieces) < _MOST_PIECES:
            numbers = range(at, min(at + MOST_AT_ONCE, units))
            page = [unit for unit in await listing.units(numbers) if unit is not None]
            pieces += await asyncio.to_thread(cached.pieces, page, excluded)
            at = numbers.stop
        event = ev.MissingFound(command.generation, tuple(pieces), at < units)
        self._record(lambda: [event])

    def supplement(self, command: do.MakeSupplement) -> None:
        """Makes a shard of missing records."""
        fed = self._streams.generations[generation_of(command.stream)]

        async def read() -> UnitsOrNone:
            units = await self._listed(fed, [piece.unit for piece in command.pieces])
            return tuple(
                unit and replace(unit, record=piece.record, stop=piece.stop or 0)
                for unit, piece in zip(units, command.pieces, strict=True)
            )

        parts = tuple(
            (place, piece.unit, piece.record, piece.stop or 0)
            for place, piece in enumerate(command.pieces)
            if piece.record or piece.stop
        )
        self._streams.make(OneShard(Grant(command.stream, command.number), read, parts))

    # --- damaged shards

    def remake(self, command: do.RemakeShard) -> None:
        """Makes the next version of a damaged shard."""
        self._start(command, self._remake(command))

    async def _remake(self, command: do.RemakeShard) -> None:
        generation, number, version = command.generation, command.number, command.version
        fed = self._streams.generations[generation]
        assert fed.shape is not None, "the generation has shards"
        try:
            path = fed.layout.sidecar(number, version)
            head, sidecar = await asyncio.to_thread(read_whole, path)
        except DiskError as error:
            if not is_lost(error):
                raise
            failed = ev.RemakeFailed(generation, number, str(error))
            self._record(lambda: [ev.ShardLost(generation, number, version), failed])
            return
        if command.drop:
            await asyncio.to_thread(publish.drop_data, fed.layout, number, version)
        parts = list(_parts(head, sidecar))

        async def read() -> UnitsOrNone:
            units = await self._listed(fed, [part.number for part in parts])
            return tuple(
                unit and replace(part, size=unit.size, label=unit.label, excluded=unit.excluded)
                for unit, part in zip(units, parts, strict=True)
            )

        meta = json.loads(sidecar.meta)
        meta.pop("schema", None)
        name = StreamId(*generation, fed.shape.streams + 1 + number)
        grant = Grant(name, number, version + 1)
        publish_remade = partial(self._publish, command)
        self._streams.make(OneShard(grant, read, remade=meta, report=publish_remade))

    def _publish(self, command: do.RemakeShard, report: Sealed | Failed) -> ev.Event:
        generation, number = command.generation, command.number
        if isinstance(report, Failed):
            return ev.RemakeFailed(generation, number, report.reason)
        if report.end == "full":  # a record that was unusable before is usable now
            return ev.RemakeFailed(generation, number, "its records need more space than before")
        if not report.records:
            return ev.RemakeFailed(generation, number, "none of its records can be fetched now")
        try:
            return self._work.publish_remade(generation, number, command.version + 1, command.drop)
        except DiskError as error:
            return ev.DiskRefused(command, str(error))

    # ---

    async def _listed(self, fed: FedGeneration, numbers: Sequence[int]) -> list[Unit | None]:
        """Returns the units with these numbers, or None for a unit that is not listed or is excluded."""
        units: list[Unit | None] = []
        for at in range(0, len(numbers), MOST_AT_ONCE):
            units += await fed.listing.units(numbers[at : at + MOST_AT_ONCE])
        excluded = self._work.excluded.excluded_from(fed.id.dataset)
        return [less_excluded(unit, excluded) for unit in units]

    def _start(
        self, command: do.FindMissing | do.RemakeShard, work: Coroutine[Any, Any, None]
    ) -> None:
        """Starts work. The policy repeats failed work."""

        def failed(error: BaseException) -> None:
            _log.error("records not fetched again", exc_info=error)
            refused = ev.DiskRefused(command, f"{type(error).__name__}: {error}")
            self._record(lambda: [refused])

        self._background.start(work, failed)


def _parts(head: SidecarHead, sidecar: Sidecar) -> Iterator[Unit]:
    """Yields the units, or parts of units, that have records in the shard. Their sizes are unknown."""
    covered = head.intervals(unit for unit, *_ in sidecar.table)
    for unit, key, begin, etag in sidecar.table:
        first, stop = covered[unit]
        stop = 0 if stop == END else stop
        yield Unit(unit, _text(key), 0, _text(etag), begin, record=first, stop=stop)


def _text(encoded: bytes) -> str:
    return encoded.decode("utf-8", "surrogatepass")
