"""One assignment at a time: units -> bytes -> records -> a sealed shard."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field

from typing_extensions import Buffer

from cachecd.config import DatasetConfig
from cachecd.errors import ConfigError, DiskError, SourceUnreachableError, UnitError
from cachecd.model import ObjectInfo, Outcome, SetAside, ShardId, UnitSlice
from cachecd.sampler.ahead import PIECE, WINDOW, Ahead
from cachecd.sampler.draft import Draft, Sealed
from cachecd.sampler.fetch import Store, open_store
from cachecd.sampler.messages import Described, Failed, FromSampler, Made, Make, Setup, Working
from cachecd.sampler.mixing import mix
from cachecd.sampler.patience import Retry
from cachecd.sampler.sources import Position, Source, open_source
from cachecd.sampler.sources.content import UnitContent
from cachecd.sampler.throttle import Throttle
from cachecd_client.schema import Schema

_HEARTBEAT = 0.25  # seconds between two Working messages


@dataclass(slots=True)
class _Dataset:
    config: DatasetConfig
    store: Store
    sources: dict[tuple[str, ...], Source] = field(default_factory=dict)  # by the label's classes
    growth: float = 1.0  # bytes written for each byte fetched, as far as seen

    @property
    def parted(self) -> bool:
        """Whether a manifest names the units: then they may be parts of objects."""
        return self.config.source is not None and self.config.source.manifest is not None

    def source(self, classes: tuple[str, ...]) -> Source:
        if classes not in self.sources:
            self.sources = {classes: open_source(self.config, classes)}
        return self.sources[classes]


@dataclass(slots=True)
class _Progress:
    """Of one assignment."""

    unit: int | None = None
    fetched_bytes: int = 0
    set_aside: list[SetAside] = field(default_factory=list)


@dataclass(slots=True)
class _Reader:
    """The store, no faster than allowed, and what comes of it counted."""

    store: Store
    throttle: Throttle
    progress: _Progress

    async def get(self, key: str, size: int | None, etag: str, start: int, stop: int) -> Buffer:
        await self.throttle.take(stop - start)
        data = await self.store.get(key, size, etag, start, stop)
        self.progress.fetched_bytes += stop - start
        return data

    async def tail(self, key: str, length: int, etag: str) -> tuple[int, Buffer]:
        await self.throttle.take(length)
        size, data = await self.store.tail(key, length, etag)
        self.progress.fetched_bytes += min(size, length)
        return size, data

    async def find(self, key: str) -> ObjectInfo:
        return await self.store.find(key)

    def list(self) -> Iterator[list[ObjectInfo]]:
        return self.store.list()


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
        self._datasets: dict[str, _Dataset] = {}
        self._throttle = Throttle(setup.bandwidth, link)
        self.path: str | None = None
        """The temporary file of the assignment in hand."""

    def prepare(self) -> None:
        """Imports and opens what the datasets need, ahead of the first assignment; what fails here
        fails there, with its reason."""
        for name in self._setup.datasets:
            with contextlib.suppress(Exception):
                dataset = self._dataset(name)
                if dataset.config.source is not None and not dataset.config.source.awaits_classes:
                    dataset.source(dataset.config.source.classes)

    def _dataset(self, name: str) -> _Dataset:
        if name not in self._datasets:
            config = DatasetConfig.model_validate(self._setup.datasets[name])
            assert config.source is not None
            store = open_store(config.source, self._setup.connections, self._retry)
            self._datasets[name] = _Dataset(config, store)
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
        progress = _Progress()
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

    async def _fill(self, make: Make, draft: Draft, progress: _Progress) -> tuple[UnitSlice, ...]:
        """Adds units to the draft until it is full; returns what did not fit."""
        dataset = self._dataset(make.assignment.shard.dataset)
        source = dataset.source(make.classes)
        units: list[UnitSlice] = []
        for unit in make.assignment.units:
            reason = source.refusal(unit, make.capacity)
            if reason is None:
                units.append(unit)
            else:
                progress.set_aside.append(SetAside(unit.unit, unit.key, reason))
        config = dataset.config
        assert config.source is not None
        streams = config.source.streams and not any(unit.seems_packed for unit in units)
        lanes = config.lanes if streams else 1
        reader = _Reader(dataset.store, self._throttle, progress)
        assigned = _Assigned(
            dataset,
            source,
            units,
            draft,
            progress,
            reader,
            self._mark,
            self._failed,
            self._setup.connections,
            lanes,
        )
        most_open = float("inf") if streams else WINDOW
        try:
            return await mix(units, assigned, draft, config.lanes, most_open)
        finally:
            assigned.close()

    async def _report(self, shard: ShardId, progress: _Progress) -> None:
        """Says now and then how far it is: silence means that something hangs."""
        while True:
            await asyncio.sleep(_HEARTBEAT)
            if progress.unit is not None:
                self._send(Working(shard, progress.fetched_bytes, progress.unit))


class _Assigned:
    """The units of one assignment that can be used, their bytes fetched ahead."""

    def __init__(
        self,
        dataset: _Dataset,
        source: Source,
        units: list[UnitSlice],
        draft: Draft,
        progress: _Progress,
        reader: _Reader,
        mark: Callable[[int], None],
        failed: Callable[[UnitError], None],
        connections: int,
        lanes: int,
    ) -> None:
        self._dataset = dataset
        self._source = source
        self._units = units
        self._draft = draft
        self._progress = progress
        self._reader = reader
        self._mark = mark
        self._failed = failed
        self._spans = [source.span(unit) for unit in units]
        lanes = min(lanes, max(len(units), 1))
        self._ahead = Ahead(self._spans, self._piece, connections, self._wanted, lanes)

    async def _piece(self, place: int, start: int, stop: int) -> Buffer:
        unit = self._units[place]
        part = self._source.ranged or self._dataset.parted
        size = None if part else unit.size
        return await self._reader.get(unit.key, size, unit.etag, start, stop)

    def _wanted(self) -> float:
        dataset, used = self._dataset, self._ahead.used
        if used >= PIECE:
            dataset.growth = max(self._draft.num_bytes / used, 0.01)
        return self._draft.room / dataset.growth

    def begin(self, place: int) -> AsyncGenerator[Position, None]:
        unit = self._units[place]
        content = UnitContent(unit, self._ahead.chunks(place), self._reader)
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
