"""One assignment at a time: units -> bytes -> records -> a sealed shard."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import AsyncGenerator, Callable
from functools import partial

from typing_extensions import Buffer

from cachecd.config import DatasetConfig
from cachecd.errors import ConfigError, DiskError, SourceUnreachableError, UnitError
from cachecd.model import LANES, Outcome, SetAside, ShardId, UnitSlice
from cachecd.sampler.ahead import PIECE, WINDOW, Ahead
from cachecd.sampler.draft import Draft, Sealed
from cachecd.sampler.messages import Described, Failed, FromSampler, Made, Make, Setup, Working
from cachecd.sampler.mixing import mix
from cachecd.sampler.origin import Origin, Progress, Reader
from cachecd.sampler.patience import Retry
from cachecd.sampler.picked import Joined
from cachecd.sampler.sources import Position, Source
from cachecd.sampler.sources.content import UnitContent
from cachecd.sampler.throttle import Throttle
from cachecd_client.schema import Schema

_HEARTBEAT = 0.25  # seconds between two Working messages


class Worker:
    """Makes shards of the datasets in `setup`, reporting to `send`.

    `mark` is told each unit before it is worked on, so that a crash can be blamed on it; `failed`, each
    exception that costs a unit or the assignment, of which the messages have the text alone. `link` is
    what this process shares its bandwidth by (throttle.py), None if it has it alone.
    """

    def __init__(
        self,
        setup: Setup,
        send: Callable[[FromSampler], None],
        mark: Callable[[int], None] = lambda unit: None,
        retry: Retry | None = None,
        failed: Callable[[Exception], None] = lambda error: None,
        link: int | None = None,
    ) -> None:
        self._setup = setup
        self._send = send
        self._mark = mark
        self._retry = retry
        self._failed = failed
        self._datasets: dict[str, Origin] = {}
        self._throttle = Throttle(setup.bandwidth, link)
        self.path: str | None = None
        """The temporary file of the assignment in hand."""

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

    async def make(self, make: Make) -> Made | Failed:
        """Does one assignment. Failed: nothing of it is left on disk."""
        shard = make.assignment.shard
        began = time.monotonic()
        self.path = make.path
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
            remainder = await self._fill(make, draft, progress)
            sealed = await asyncio.to_thread(draft.seal, remainder) if draft.records else Sealed()
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
                    set_aside=tuple(progress.set_aside),
                ),
            )
        # A transform that cannot be imported stops the dataset as a source does that is not there.
        except (SourceUnreachableError, ConfigError) as error:
            self._failed(error)
            return Failed(shard, "source", str(error))
        except DiskError as error:
            code = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
            return Failed(shard, "disk", str(error), code or 0)
        except Exception as error:
            self._failed(error)
            traceback.print_exc()
            told = traceback.format_exception_only(error)[-1].strip()
            return Failed(shard, "worker", told, unit=progress.unit)
        finally:
            heartbeat.cancel()
            draft.abort()
            self.path = None

    async def _fill(self, make: Make, draft: Draft, progress: Progress) -> tuple[UnitSlice, ...]:
        """Adds units to the draft until it is full; returns what did not fit."""
        dataset = self._dataset(make.assignment.shard.dataset)
        source = dataset.read_with(make.classes)
        units: list[UnitSlice] = []
        for unit in make.assignment.units:
            reason = source.refusal(unit, make.capacity)
            if reason is None:
                units.append(unit)
            else:
                progress.set_aside.append(SetAside(unit.unit, unit.key, reason))
        streams = [dataset.streams(unit) for unit in units]
        # A unit of `files` is one record, and units come in a random order: nothing is to be mixed.
        lanes = 1 if dataset.config.source.format == "files" else LANES
        assigned = _Assigned(
            dataset,
            source,
            units,
            Reader(dataset.store, self._throttle, progress),
            draft,
            progress,
            self._mark,
            self._failed,
            self._setup.connections,
            lanes if any(streams) else 1,
        )
        # What is not read as a stream is in memory as long as it is in hand.
        in_memory = [
            0 if stream else unit.size for stream, unit in zip(streams, units, strict=True)
        ]
        try:
            return await mix(units, assigned, draft, lanes, in_memory, WINDOW)
        finally:
            assigned.close()

    async def _report(self, shard: ShardId, progress: Progress) -> None:
        """Says now and then how far it is: silence means that something hangs."""
        while True:
            await asyncio.sleep(_HEARTBEAT)
            if progress.unit is not None:
                self._send(Working(shard, progress.fetched_bytes, progress.unit))


class _Assigned:
    """The units of one assignment that can be used, their bytes fetched ahead."""

    def __init__(
        self,
        dataset: Origin,
        source: Source,
        units: list[UnitSlice],
        reader: Reader,
        draft: Draft,
        progress: Progress,
        mark: Callable[[int], None],
        failed: Callable[[Exception], None],
        connections: int,
        lanes: int,
    ) -> None:
        self._dataset = dataset
        self._source = source
        self._units = units
        self._reader = reader
        self._draft = draft
        self._progress = progress
        self._mark = mark
        self._failed = failed
        # Whether a unit may be less than its object.
        self._parted = source.ranged or dataset.config.source.manifest is not None
        self._spans = [source.span(unit) for unit in units]
        lanes = min(lanes, max(len(units), 1))
        self._ahead = Ahead(self._spans, self._piece, connections, self._wanted, lanes)
        join = dataset.config.source.join
        self._joined = [
            Joined(unit, join, reader, partial(self._ahead.lengthen, place))
            for place, unit in enumerate(units)
            if join
        ]

    async def _piece(self, place: int, start: int, stop: int) -> Buffer:
        if self._joined:
            return await self._joined[place].read(start, stop)
        unit = self._units[place]
        size = None if self._parted else unit.size
        return await self._reader.get(unit.key, size, unit.etag, start, stop)

    def _wanted(self) -> float:
        dataset, used = self._dataset, self._ahead.used
        if used >= PIECE:
            dataset.growth = max(self._draft.num_bytes / used, 0.01)
        return self._draft.room / dataset.growth

    def begin(self, place: int) -> AsyncGenerator[Position, None]:
        unit = self._units[place]
        objects = self._joined[place].objects if self._joined else ()
        content = UnitContent(unit, self._ahead.chunks(place), self._reader, objects)
        return self._source.pour(unit, content, self._draft)

    def work(self, place: int) -> None:
        unit = self._units[place].unit
        if self._progress.unit != unit:
            self._progress.unit = unit
            self._mark(unit)

    def reached(self, place: int, position: Position) -> None:
        _, offset = position
        span = self._spans[place]
        if offset and span is not None:
            self._ahead.note(place, self._units[place].begin + offset - span[0])

    def ended(self, place: int, error: UnitError | None) -> None:
        self._ahead.leave(place)
        if error is not None:
            self._failed(error)
            unit = self._units[place]
            self._progress.set_aside.append(
                SetAside(unit.unit, unit.key, str(error), error.passing)
            )

    def close(self) -> None:
        """Fetches no more."""
        self._ahead.close()
