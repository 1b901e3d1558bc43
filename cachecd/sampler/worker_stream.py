"""One stream in a worker: its messages, its current shard, and its grants."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
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
from cachecd.sampler.origin import MeteredStore, Origin, Progress
from cachecd.sampler.supply import Supply
from cachecd.sampler.throttle import Throttle
from cachecd_client.schema import Schema

_SKIPS = 128  # a shard ends when skipped units take this part of its capacity
_PAGES = 4  # units are asked for when fewer than `_PAGES` x connections are left


class WorkerStream:
    """A stream that was opened. `send` reports. `working` is called with each unit that is processed,
    `failed` with each error that skips a record or a unit.

    After an error the caller must close the stream.
    """

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
        self.progress = Progress()
        self.grants: deque[Grant] = deque()
        self.writing: Grant | None = None
        """The grant of the shard in hand."""
        self._remakes = opened.remade is not None
        name = opened.stream
        new: dict[str, Any] = {
            "dataset": name.dataset,
            "generation": name.generation,
            "stream": name.index,
        }
        if opened.parts:
            new["parts"] = opened.parts
        self._meta = new if opened.remade is None else opened.remade
        self._send = send
        self._working = working
        self._connections = connections
        self._capacity = opened.shape.capacity
        self._half = False  # it was reported
        self._idle = False  # nothing can be done before another message
        self._has_asked = False
        self._sealed_bytes = 0
        self._sealing: asyncio.Task[FinishedDraft] | None = None
        self._sealed_at = time.monotonic()  # when the last shard was sealed
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
        )
        self._supply = Supply(
            dataset,
            dataset.read_with(opened.classes),
            MeteredStore(dataset.store, throttle, self.progress),
            self._capacity,
            opened.shape.lanes,
            connections,
            self._room,
            self._written,
            self._works,
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
        self._ask()

    # --- messages

    def list_units(self, page: Units) -> None:
        """Appends units. ValueError if they do not follow the units before."""
        self._filling.feed(page.block, page.place, page.units, page.more)
        self._has_asked = self._idle = False
        self._ask()

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
            self._send(self._working_on())

    # --- work

    async def work(self) -> None:
        """Makes the current shard, or the next granted one. Returns when the shard is sealed, or waits for
        units."""
        if self.writing is None:
            self.writing = self.grants.popleft()
            number = self.writing.number
            self._draft.begin_shard(self.writing.path, {**self._meta, "number": number})
            self._half = False
        end = await self._filling.fill(self._draft)
        self._ask()
        self._idle = end == "waits"  # a grant at `until`, or behind the pass, is answered
        if end == "waits":
            return
        part, after = self._filling.part, self._filling.cursor()
        assert part is not None, "a shard was filled"
        num_passed, passed = self._draft.num_passed, self._draft.passed
        misfits = self._draft.misfits, self._draft.misfit
        sealed = FinishedDraft()
        if self._draft.records or part.skipped or part.before != after:
            text = end_text(part.before, after, part.ended, num_passed, part.skipped)
            sealed = await self._seal({} if self._remakes else text)
        else:
            discard(self.writing.path)  # of a process that was killed
        since, self._sealed_at = self._sealed_at, time.monotonic()
        number, self.writing = self.writing.number, None
        self._send(
            Sealed(
                self.id,
                number,
                part.before,
                after,
                end,
                sealed.records,
                sealed.data_bytes,
                sealed.allocated,
                sealed.digest,
                part.ended,
                num_passed,
                passed,
                *misfits,
                tuple(part.skipped),
                self.progress.fetched_bytes,
                self._sealed_at - since,
            )
        )

    @property
    def buffered(self) -> int:
        """Bytes in memory that were fetched ahead, or are being fetched."""
        return self._supply.buffered

    async def let_go(self) -> None:
        """Drops bytes that were fetched ahead. The stream keeps its cursor."""
        await self._filling.let_go()

    async def close(self) -> None:
        """Ends all lanes, and removes the files of the current shard. Idempotent. `work` must not run any
        more."""
        self._supply.close()
        if self._sealing is not None:
            await asyncio.wait({self._sealing})
        self._draft.abort()
        if self.writing is not None:
            discard(self.writing.path)
            self.writing = None
        self.grants.clear()
        await self._filling.let_go()

    async def _seal(self, text: dict[str, Any]) -> FinishedDraft:
        """Seals the shard in a thread. Bytes are fetched ahead meanwhile; no other code uses the draft."""
        self._sealed_bytes += self._draft.num_bytes
        self._sealing = asyncio.create_task(asyncio.to_thread(self._draft.seal, text))
        sealed = await asyncio.shield(self._sealing)
        self._sealing = None
        return sealed

    def _room(self) -> int:
        """The bytes that the current shard and the granted shards can still take."""
        open_ = self.writing is not None and self._sealing is None
        return (self._draft.room if open_ else 0) + len(self.grants) * self._capacity

    def _written(self) -> int:
        return self._sealed_bytes + (self._draft.num_bytes if self._sealing is None else 0)

    def _ask(self) -> None:
        short = self._filling.queued < _PAGES * self._connections
        if short and self._filling.asks and not self._has_asked:
            self._has_asked = True
            self._send(Asks(self.id))

    def _works(self, unit: Unit) -> None:
        if self.progress.unit is not unit:
            self.progress.unit = unit
            self._working(unit)
            self._ask()

    def _report_half(self) -> None:
        if not self._half and self._draft.num_bytes * 2 >= self._capacity:
            self._half = True
            self._send(self._working_on())

    def _working_on(self) -> Working:
        assert self.writing is not None, "a shard is in hand"
        unit = -1 if self.progress.unit is None else self.progress.unit.number
        return Working(self.id, self.writing.number, self.progress.fetched_bytes, unit, self._half)
