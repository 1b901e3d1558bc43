"""One stream in a worker: its messages, its current shard, and its grants."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from cachecd.errors import UnitError
from cachecd.model import Cursor, Unit
from cachecd.sampler.draft import Draft, FinishedDraft, discard, end_text
from cachecd.sampler.filling import Filling
from cachecd.sampler.messages import (
    Asks,
    Described,
    FromStream,
    Grant,
    Open,
    Sealed,
    Units,
    Working,
)
from cachecd.sampler.meter import METER
from cachecd.sampler.origin import MeteredStore, Origin, Progress
from cachecd.sampler.supply import Supply
from cachecd.sampler.throttle import Throttle
from cachecd_client.schema import Schema

_SKIPS = 128  # a shard ends when skipped units take 1/_SKIPS of its capacity
_PAGES = 4  # the stream requests units when fewer than _PAGES * connections units are queued


class WorkerStream:
    """An open stream. After an error the caller must close the stream. `send` gets the reports. `working`
    is called with each unit before the work on it, and `failed` with each error that skips a record or a
    unit."""

    def __init__(
        self,
        opened: Open,
        dataset: Origin,
        throttle: Throttle,
        connections: int,
        send: Callable[[FromStream], None],
        working: Callable[[Unit], None],
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self.id = opened.stream
        self._dataset, self._throttle = dataset, throttle
        self.progress = Progress()
        self.grants: deque[Grant] = deque()
        self.writing: Grant | None = None
        """The grant of the current shard."""
        self._remakes = opened.remade is not None
        self._meta: dict[str, Any] = opened.remade or {
            "dataset": self.id.dataset,
            "generation": self.id.generation,
            "stream": self.id.index,
            **({"parts": opened.parts} if opened.parts else {}),
        }
        self._send = send
        self._working = working
        self._connections = connections
        self._capacity = opened.shape.capacity
        self._is_half = False  # whether the current shard was reported as half full
        self._idle = False  # whether the stream needs a message before it can work
        self._has_requested = False  # whether a request for units is not answered yet
        self._sealed_bytes = 0
        self._sealing: asyncio.Task[FinishedDraft] | None = None
        self._sealed_at = time.monotonic()
        format_ = dataset.read_with(opened.classes)
        skips = None if self._remakes else self._capacity // _SKIPS
        self._draft = Draft(
            "",
            self._capacity,
            Schema.from_json(opened.schema) if opened.schema else None,
            lambda schema: send(Described(self.id, schema.to_json())),
            {},
            opened.classes,
            skips,
            failed,
            dataset.config.source.features or {},
            format_.tokens,
        )
        self._supply = Supply(
            dataset,
            format_,
            MeteredStore(dataset.store, throttle, self.progress),
            self._capacity,
            opened.shape.lanes,
            connections,
            self._room,
            self._written,
            self._begin_unit,
            failed,
            self._report_half,
        )
        self._filling = Filling(
            self._supply,
            opened.shape.lanes,
            opened.cursor,
            opened.units,
            opened.until,
            skips,
            {each.unit: UnitError(each.reason, passing=each.passing) for each in opened.condemned},
        )
        self._request_units()

    # --- messages

    def list_units(self, page: Units) -> None:
        """Appends units. ValueError if they do not begin where the previous units ended."""
        self._filling.feed(page.block, page.place, page.units, page.more)
        self._has_requested = self._idle = False
        self._request_units()

    def move_until(self, until: Cursor | None) -> None:
        self._filling.move_until(until)
        self._idle = False

    def grant(self, granted: Grant) -> None:
        self.grants.append(granted)

    @property
    def can_work(self) -> bool:
        return not self._idle and (self.writing is not None or bool(self.grants))

    def report(self) -> None:
        """Reports the progress of the current shard."""
        if self.writing is not None and self.progress.unit is not None:
            self._send_progress()

    # --- work

    async def work(self) -> None:
        """Makes the current shard, or the next granted shard. Returns when the shard is sealed, or when it
        needs more units."""
        METER.turn(self.id.dataset, self._why_late)
        if self.writing is None:
            self.writing = self.grants.popleft()
            number = self.writing.number
            self._draft.begin_shard(self.writing.path, {**self._meta, "number": number})
            self._is_half = False
        end = await self._filling.fill(self._draft)
        self._request_units()
        self._idle = end == "waits"
        if end == "waits":
            return
        shard, after = self._filling.shard, self._filling.cursor()
        assert shard is not None, "a shard was filled"
        num_passed, passed = self._draft.num_passed, self._draft.passed
        misfits = self._draft.misfits, self._draft.misfit
        sealed = FinishedDraft()
        if self._draft.records or shard.skipped or shard.before != after:
            text = end_text(shard.before, after, shard.ended, num_passed, shard.skipped)
            sealed = await self._seal({} if self._remakes else text)
        else:
            discard(self.writing.path)  # a killed process may have left files
        METER.passed("fetch", sealed.records)
        since, self._sealed_at = self._sealed_at, time.monotonic()
        number, self.writing = self.writing.number, None
        self._send(
            Sealed(
                self.id,
                number,
                shard.before,
                after,
                end,
                sealed.records,
                sealed.data_bytes,
                sealed.allocated,
                sealed.digest,
                shard.ended,
                num_passed,
                passed,
                *misfits,
                tuple(shard.skipped),
                self.progress.fetched_bytes,
                self._sealed_at - since,
                METER.take(),
            )
        )

    @property
    def buffered(self) -> int:
        """Bytes that were fetched ahead, and bytes that are being fetched."""
        return self._supply.buffered

    async def release_lanes(self) -> None:
        """Drops bytes that were fetched ahead. The stream keeps its cursor."""
        await self._filling.release_lanes()

    async def close(self) -> None:
        """Stops reading, and removes the files of the current shard. Idempotent. `work` must have ended."""
        self._supply.close()
        if self._sealing is not None:
            await asyncio.wait({self._sealing})
        self._draft.abort()
        if self.writing is not None:
            discard(self.writing.path)
            self.writing = None
        self.grants.clear()
        await self._filling.release_lanes()

    async def _seal(self, text: dict[str, Any]) -> FinishedDraft:
        """Seals the shard in a thread, while bytes are fetched ahead. No other code uses the draft."""
        self._sealed_bytes += self._draft.num_bytes
        sync = METER.off_loop("sync", partial(self._draft.seal, text), self._draft.records)
        self._sealing = asyncio.create_task(sync)
        sealed = await asyncio.shield(self._sealing)
        self._sealing = None
        return sealed

    def _room(self) -> int:
        """Returns the free bytes of the current shard and of the granted shards."""
        open_ = self.writing is not None and self._sealing is None
        return (self._draft.room if open_ else 0) + len(self.grants) * self._capacity

    def _written(self) -> int:
        return self._sealed_bytes + (self._draft.num_bytes if self._sealing is None else 0)

    def _request_units(self) -> None:
        short = self._filling.queued < _PAGES * self._connections
        if short and self._filling.takes_units and not self._has_requested:
            self._has_requested = True
            self._send(Asks(self.id))

    def _begin_unit(self, unit: Unit) -> None:
        if self.progress.unit is not unit:
            self.progress.unit = unit
            self._working(unit)
            self._request_units()

    def _report_half(self) -> None:
        if not self._is_half and self._draft.num_bytes * 2 >= self._capacity:
            self._is_half = True
            self._send_progress()

    def _send_progress(self) -> None:
        assert self.writing is not None, "the stream makes a shard"
        number, fetched = self.writing.number, self.progress.fetched_bytes
        unit = -1 if self.progress.unit is None else self.progress.unit.number
        self._send(Working(self.id, number, fetched, unit, self._is_half, METER.take()))

    def _why_late(self) -> str:
        """Returns why the bytes that the stream waits for are late: a key of `Effort.waits`."""
        if self._throttle.is_short:
            return "bandwidth"
        return "throttled" if self._dataset.store.is_throttled else "link"
