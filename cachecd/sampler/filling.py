"""Fills the shards of one stream: chooses the unit of the next record, and keeps the cursor.

A stream reads several units at the same time, in *lanes*. The lane that has given the fewest bytes to the
current shard gives the next record. A lane stays open when a shard ends, so that the next shard continues
in the middle of a unit. The cursor before a shard, the units and `until` determine the content of the
shard. The order in which bytes arrive has no influence.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from cachecd.errors import UnitError
from cachecd.model import (
    Cursor,
    Lane,
    More,
    Place,
    Skipped,
    Unit,
    etag_hash,
)
from cachecd.sampler.draft import Draft, skipped_bytes
from cachecd.sampler.formats import Position
from cachecd.sampler.meter import METER
from cachecd.sampler.supply import Supply
from cachecd.stores.backend import is_shortage

IN_HAND = 64 << 20  # bytes of all open units in whose middle reading cannot begin
# Heartbeats and fetches run after this many seconds. After each small record, this would take longer than
# writing the record.
_PAUSE_AFTER = 0.001

# Why a shard ended. "waits": it has not ended, but needs `feed` or `move_until` to continue.
End = Literal["full", "pass", "until", "skips", "waits"]


@dataclass(slots=True)
class _Lane:
    place: Place
    unit: Unit
    etag: int  # hash of the ETag of the version in hand; `unit` has this version, unless `stale` is set
    size: int
    position: Position
    handle: int
    in_hand: int  # bytes that count towards IN_HAND
    begin: int | None = None  # the first record, if the lane was opened in the current shard
    stale: str = ""  # why the listed version is not the version in hand
    given: int = 0  # bytes of the current shard
    records: AsyncGenerator[Position, int | None] | None = None
    begun: bool = False  # whether `records` has yielded a position


@dataclass(slots=True)
class _Queued:
    place: Place
    unit: Unit | None  # None: the stream skips the place
    handle: int = -1  # set when `until` allows the unit
    refusal: UnitError | None = None


@dataclass(slots=True)
class UnsealedShard:
    """The current shard without its records: the cursor before it, and the units skipped in it."""

    before: Cursor
    ended: int = 0  # number of units
    skipped: list[Skipped] = field(default_factory=list)
    skipped_bytes: int = 0


class Filling:
    """One stream at a cursor. `units`: the current listing of the units in the cursor's lanes, in the order
    of the lanes; None for a unit that is no longer listed.

    At most `most_lanes` units are open. `skips`: when skipped units take this many bytes of a shard, the
    shard ends; None: no bound. `condemned`: the units that are skipped without a try, with the reason.
    """

    def __init__(
        self,
        supply: Supply,
        most_lanes: int,
        cursor: Cursor = Cursor(),  # noqa: B008 frozen
        units: Sequence[Unit | None] = (),
        until: Cursor | None = None,
        skips: int | None = None,
        condemned: Mapping[int, UnitError] = {},
    ) -> None:
        self._supply = supply
        self._most_lanes = most_lanes
        self._skips = float("inf") if skips is None else skips
        self._condemned = condemned
        self._pass = cursor.pass_
        self._open_next: Place = cursor.block, cursor.place  # after the last opened unit
        self._feed_next = self._open_next  # after the last appended unit
        self._queue: deque[_Queued] = deque()  # units that may be opened
        self._beyond: deque[_Queued] = deque()  # units that `until` does not allow
        self._more: More = "listed"
        self._until = until
        self._lanes = [
            self._reopened(lane, unit) for lane, unit in zip(cursor.lanes, units, strict=True)
        ]
        self._active: list[_Lane] = []
        self._in_hand = 0
        self._changed = False  # whether lanes were opened or ended
        self._stops: dict[int, int] = {}
        self.shard: UnsealedShard | None = None
        """The current shard, or the shard that has just ended."""
        self._ended = True
        self.move_until(until)

    # --- units and `until`

    @property
    def queued(self) -> int:
        """The number of appended units that are not opened."""
        return len(self._queue) + len(self._beyond)

    @property
    def takes_units(self) -> bool:
        """Whether more units can be appended."""
        return self._more == "listed"

    def feed(self, block: int, place: int, units: Sequence[Unit | None], more: More) -> None:
        """Appends the units at (block, place) and the places after it. The stream skips the place of
        a unit that is None. ValueError if the units do not begin where the previous units ended."""
        if units:
            expected = self._feed_next
            if (block, place) != expected and not (block > expected[0] and place == 0):
                raise ValueError(
                    f"units from {(block, place)} on, expected {expected} or a new block"
                )
            for nth, unit in enumerate(units, place):
                self._beyond.append(_Queued((block, nth), unit))
            self._feed_next = block, place + len(units)
            self._admit()
        self._more = more

    def move_until(self, until: Cursor | None) -> None:
        """Allows the stream to continue to this cursor; None: no limit."""
        self._until = until
        self._stops = {}
        if until is not None and until.pass_ == self._pass:
            self._stops = {lane.unit: lane.record for lane in until.lanes}
        self._admit()
        self._update_active()

    def _admit(self) -> None:
        """Starts fetching the units that `until` allows."""
        until = self._until
        while self._beyond:
            queued = self._beyond[0]
            if until is not None and (self._pass, *queued.place) >= (
                until.pass_,
                until.block,
                until.place,
            ):
                return
            if queued.unit is not None:
                queued.refusal = self._refusal(queued.unit)
                if queued.refusal is None:
                    queued.handle = self._supply.add(queued.unit)
            self._queue.append(self._beyond.popleft())

    def _refusal(self, unit: Unit) -> UnitError | None:
        if condemned := self._condemned.get(unit.number):
            return condemned
        reason = self._supply.refusal(unit)
        return None if reason is None else UnitError(reason)

    def cursor(self) -> Cursor:
        """Returns the stream's cursor."""
        return Cursor(
            self._pass,
            *self._open_next,
            tuple(
                Lane(*lane.place, lane.unit.number, lane.etag, lane.size, *lane.position)
                for lane in self._lanes
            ),
        )

    # --- filling

    async def fill(self, draft: Draft) -> End:
        """Adds records to the draft until the shard ends. After "waits", the next call continues the shard.
        Errors of the supply end the stream, except a UnitError that no shortage caused."""
        if self._ended or self.shard is None:
            self.shard, self._ended = UnsealedShard(self.cursor()), False
            for lane in self._lanes:
                lane.given, lane.begin = 0, None
        end = await self._fill(draft, self.shard)
        self._ended = end != "waits"
        return end

    async def _fill(self, draft: Draft, shard: UnsealedShard) -> End:
        paused = time.monotonic()
        while not draft.full:
            while self._has_room():
                if not self._queue:
                    if self._more != "end" and not self._beyond:
                        return "waits"
                    break
                self._open(shard)
                if shard.skipped_bytes >= self._skips:
                    return "skips"
            if not self._active:
                return "until" if self._lanes or self._beyond else "pass"
            self._begin_lanes(draft)
            lane = min(self._active, key=lambda each: (each.given, each.place))
            if time.monotonic() - paused > _PAUSE_AFTER:
                await asyncio.sleep(0)
                paused = time.monotonic()
            is_timed = next(METER.turns)
            if is_timed:
                METER.begin()
            try:
                await self._step(lane, draft, shard)
            finally:
                if is_timed:
                    METER.end()
            self._supply.after_step()
            if shard.skipped_bytes >= self._skips:
                return "skips"
        return "full"

    async def release_lanes(self) -> None:
        """Stops reading all lanes, and drops bytes that were fetched ahead. The stream keeps its cursor.
        Idempotent."""
        for lane in self._lanes:
            if lane.records is not None:
                await lane.records.aclose()
                lane.records, lane.begun = None, False
                self._changed = True
                self._supply.leave(lane.handle)
                record, offset = lane.position
                lane.unit = replace(lane.unit, record=record, offset=offset)
                lane.handle = self._supply.add(lane.unit)

    # --- opening

    def _has_room(self) -> bool:
        """Whether a lane is free for the next unit, if `until` allows a next unit."""
        if len(self._lanes) >= self._most_lanes:
            return False
        if not self._active:
            return True
        if self._in_hand >= IN_HAND:
            return False
        unit = self._queue[0].unit if self._queue else None
        if unit is None or self._stops.get(unit.number) == 0:
            return True
        return self._in_hand + self._supply.in_hand(unit) <= IN_HAND

    def _open(self, shard: UnsealedShard) -> None:
        """Opens a lane for the next unit, or skips the unit."""
        queued = self._queue.popleft()
        (block, place), unit = queued.place, queued.unit
        self._open_next = block, place + 1
        if unit is None:
            return
        lane = _Lane(
            queued.place,
            unit,
            etag_hash(unit.etag),
            unit.size,
            (unit.record, unit.offset),
            queued.handle,
            self._supply.in_hand(unit),
            unit.record,
        )
        if queued.refusal is not None:
            self._skip(lane, shard, unit.record, queued.refusal)
            return
        self._lanes.append(lane)
        self._update_active()

    def _reopened(self, lane: Lane, listed: Unit | None) -> _Lane:
        """Opens a lane of the cursor again."""
        stale = ""
        if listed is None:
            listed, stale = Unit(lane.unit, "", lane.size), "gone: it is no longer listed"
        elif (etag_hash(listed.etag), listed.size) != (lane.etag, lane.size):
            stale = "rewritten: the listed version differs from the version in hand"
        unit = replace(listed, record=lane.record, offset=lane.offset)
        return _Lane(
            (lane.block, lane.place),
            unit,
            lane.etag,
            lane.size,
            (lane.record, lane.offset),
            -1 if stale or lane.unit in self._condemned else self._supply.add(unit),
            self._supply.in_hand(unit),
            stale=stale,
        )

    async def _find_version(self, lane: _Lane) -> None:
        """Finds the version of the open lane in the store, although another version is listed. UnitError
        if it cannot be used. The old version is read only up to `until`: the records after it are live."""
        if not lane.unit.key or lane.unit.number not in self._stops:
            raise UnitError(lane.stale)
        etag, size = await self._supply.current_version(lane.unit.key)
        if (etag_hash(etag), size) != (lane.etag, lane.size):
            raise UnitError(lane.stale)
        lane.unit, lane.stale = replace(lane.unit, etag=etag, size=size), ""
        lane.handle = self._supply.add(lane.unit)

    # --- records

    def _begin_lanes(self, draft: Draft) -> None:
        """Begins to fetch all lanes at once, before the first lane gives a record."""
        if self._changed:
            self._changed = False
            for lane in self._active:
                if lane.records is None and lane.handle >= 0:
                    lane.records = self._supply.pour(lane.handle, draft)

    async def _step(self, lane: _Lane, draft: Draft, shard: UnsealedShard) -> None:
        """Adds or skips one record or one run of records of the lane, or ends the lane. Skips a unit
        if every record of the unit was skipped."""
        size, ordinals = draft.num_bytes, draft.ordinals
        self._supply.work(lane.unit)
        try:
            if error := self._condemned.get(lane.unit.number):
                raise error
            if lane.stale:
                await self._find_version(lane)
            lane.records = lane.records or self._supply.pour(lane.handle, draft)
            stop = self._stops.get(lane.unit.number) if lane.begun else None
            lane.position = await lane.records.asend(stop)
            lane.begun = True
        except StopAsyncIteration:
            lane.given += draft.num_bytes - size
            self._end_lane(lane)
            is_empty = lane.begin is not None and not lane.given
            if is_empty and (passed := draft.pop_passed(lane.unit)):
                self._skip(lane, shard, lane.begin or 0, UnitError(passed[0].reason))
            else:
                shard.ended += 1
                self._supply.leave(lane.handle)
            return
        except UnitError as error:
            if is_shortage(error):
                raise
            lane.given += draft.num_bytes - size
            self._end_lane(lane)
            shard.ended += bool(lane.given)
            self._skip(lane, shard, lane.position[0] + draft.ordinals - ordinals, error)
            return
        lane.given += draft.num_bytes - size
        self._supply.reached(lane.handle, lane.position)
        if self._is_at_until(lane):
            self._update_active()

    def _end_lane(self, lane: _Lane) -> None:
        self._lanes.remove(lane)
        self._update_active()

    def _skip(self, lane: _Lane, shard: UnsealedShard, record: int, error: UnitError) -> None:
        """Skips the lane's unit from `record` on."""
        if lane.handle >= 0:
            self._supply.leave(lane.handle, error)
        unit = lane.unit
        shard.skipped.append(
            Skipped(unit.number, unit.key, lane.etag, record, str(error), error.passing)
        )
        shard.skipped_bytes += skipped_bytes(unit.key)

    def _is_at_until(self, lane: _Lane) -> bool:
        if self._until is not None and self._pass > self._until.pass_:
            return True
        stop = self._stops.get(lane.unit.number)
        return stop is not None and lane.position[0] >= stop

    def _update_active(self) -> None:
        """Notes that a lane was opened, has ended or has reached `until`."""
        self._active = [lane for lane in self._lanes if not self._is_at_until(lane)]
        self._in_hand = sum(lane.in_hand for lane in self._active)
        self._changed = True
