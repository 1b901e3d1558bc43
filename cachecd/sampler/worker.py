"""One assignment at a time: units -> bytes -> records -> a sealed shard."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from typing_extensions import Buffer

from cachecd.config import DatasetConfig
from cachecd.errors import ConfigError, DiskError, SourceUnreachableError, UnitError
from cachecd.model import LANES, Outcome, SetAside, ShardId, UnitSlice
from cachecd.sampler.ahead import PIECE, WINDOW, Ahead
from cachecd.sampler.draft import Draft, Sealed
from cachecd.sampler.messages import Described, Failed, FromSampler, Made, Make, Setup, Working
from cachecd.sampler.mixing import mix
from cachecd.sampler.origins import Origin, Origins, Progress, Reader
from cachecd.sampler.patience import Retry
from cachecd.sampler.sources import Position
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
        self._datasets: dict[str, Origins] = {}
        self._throttle = Throttle(setup.bandwidth, link)
        self.path: str | None = None
        """The temporary file of the assignment in hand."""

    def prepare(self) -> None:
        """Imports and opens what the datasets need, ahead of the first assignment; what fails here
        fails there, with its reason."""
        for name in self._setup.datasets:
            with contextlib.suppress(Exception):
                dataset = self._dataset(name)
                if not dataset.config.awaits_classes:
                    dataset.read_with(dataset.config.classes)

    def _dataset(self, name: str) -> Origins:
        if name not in self._datasets:
            config = DatasetConfig.model_validate(self._setup.datasets[name])
            self._datasets[name] = Origins(config, self._setup.connections, self._retry)
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
                    unreachable=tuple(progress.unreachable.items()),
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
        units: list[_Unit] = []
        for unit in make.assignment.units:
            origin, own = dataset.of(unit, make.classes)
            reason = origin.source.refusal(own, make.capacity)
            if reason is None:
                reader = Reader(origin.store, self._throttle, progress)
                units.append(_Unit(unit, own, origin, reader))
            else:
                progress.set_aside.append(SetAside(unit.unit, unit.key, reason))
        streams = [each.origin.streams(each.own) for each in units]
        # A unit of `files` is one record, and units come in a random order: nothing is to be mixed.
        single = all(source.format == "files" for source in dataset.config.all_sources)
        lanes = 1 if single else LANES
        assigned = _Assigned(
            dataset,
            make.waits,
            units,
            draft,
            progress,
            self._mark,
            self._failed,
            self._setup.connections,
            lanes if any(streams) else 1,
        )
        # What is not read as a stream is in memory as long as it is in hand.
        in_memory = [
            0 if stream else each.own.size for stream, each in zip(streams, units, strict=True)
        ]
        try:
            whole = [each.listed for each in units]
            return await mix(whole, assigned, draft, lanes, in_memory, WINDOW)
        finally:
            assigned.close()

    async def _report(self, shard: ShardId, progress: Progress) -> None:
        """Says now and then how far it is: silence means that something hangs."""
        while True:
            await asyncio.sleep(_HEARTBEAT)
            if progress.unit is not None:
                self._send(Working(shard, progress.fetched_bytes, progress.unit))


@dataclass(frozen=True, slots=True)
class _Unit:
    """A unit as it is listed, and as it is called in the source that it is of."""

    listed: UnitSlice
    own: UnitSlice
    origin: Origin
    reader: Reader


class _Assigned:
    """The units of one assignment that can be used, their bytes fetched ahead."""

    def __init__(
        self,
        dataset: Origins,
        waits: bool,
        units: list[_Unit],
        draft: Draft,
        progress: Progress,
        mark: Callable[[int], None],
        failed: Callable[[Exception], None],
        connections: int,
        lanes: int,
    ) -> None:
        self._dataset = dataset
        self._waits = waits
        self._units = units
        self._draft = draft
        self._progress = progress
        self._mark = mark
        self._failed = failed
        self._spans = [each.origin.source.span(each.own) for each in units]
        lanes = min(lanes, max(len(units), 1))
        self._ahead = Ahead(self._spans, self._piece, connections, self._wanted, lanes)

    async def _piece(self, place: int, start: int, stop: int) -> Buffer:
        unit, origin = self._units[place].own, self._units[place].origin
        size = None if origin.parted else unit.size
        return await self._units[place].reader.get(unit.key, size, unit.etag, start, stop)

    def _wanted(self) -> float:
        dataset, used = self._dataset, self._ahead.used
        if used >= PIECE:
            dataset.growth = max(self._draft.num_bytes / used, 0.01)
        return self._draft.room / dataset.growth

    def begin(self, place: int) -> AsyncGenerator[Position, None]:
        each = self._units[place]
        content = UnitContent(each.own, self._ahead.chunks(place), each.reader)
        return each.origin.source.pour(each.own, content, self._draft)

    def work(self, place: int) -> None:
        unit = self._units[place].own.unit
        if self._progress.unit != unit:
            self._progress.unit = unit
            self._mark(unit)

    def reached(self, place: int, position: Position) -> None:
        _, offset = position
        span = self._spans[place]
        if offset and span is not None:
            self._ahead.note(place, self._units[place].own.begin + offset - span[0])

    def ended(self, place: int, error: UnitError | None) -> None:
        self._ahead.leave(place)
        if error is not None:
            self._failed(error)
            unit = self._units[place].listed
            self._progress.set_aside.append(
                SetAside(unit.unit, unit.key, str(error), error.passing)
            )

    def unreachable(self, place: int, error: SourceUnreachableError) -> None:
        config, away = self._dataset.config, self._progress.unreachable
        # Of one source nothing else can be had, and sets that are to be the same on every run wait.
        if not config.sources or self._waits:
            raise error
        self._ahead.leave(place)
        self._failed(error)
        away[self._units[place].origin.place] = str(error)
        if not self._draft.records and len(away) == len(config.sources):
            raise error

    def is_away(self, place: int) -> bool:
        return self._units[place].origin.place in self._progress.unreachable

    def close(self) -> None:
        """Fetches no more."""
        self._ahead.close()
