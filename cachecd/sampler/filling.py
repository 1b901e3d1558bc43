"""Fills the shards of one stream: chooses the unit of the next record, and keeps the cursor.

A stream has some units in hand, its *lanes*. The lane that has given the current shard the fewest bytes
gives the next record; counts restart with each shard. A lane stays open when a shard ends, so that the next
shard continues in the middle of a unit. The content of a shard follows from the cursor before it, the units
and `until`, never from the order in which bytes arrive.
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
from cachecd.sampler.supply import Supply
from cachecd.stores.backend import is_shortage

IN_HAND = 64 << 20  # bytes of units in hand that cannot be begun in their middle, together
# Seconds after which heartbeats and fetches may run; small records would pay more for that than for being
# written.
_BREATH = 0.001

# Why a shard ended; "waits": it did not, but nothing can be done before `feed` or `move_until`.
End = Literal["full", "pass", "until", "skips", "waits"]


@dataclass(slots=True)
class _Lane:
    place: Place
    unit: Unit
    etag: int  # of the version in hand; the ETag itself is the unit's, unless that is `stale`
    size: int
    position: Position
    handle: int
    hand: int
    begin: int | None = None  # its first record, if the lane was opened in the current shard
    stale: str = ""  # why the unit as it is listed now is not the version in hand
    given: int = 0  # bytes of the current shard
    records: AsyncGenerator[Position, int | None] | None = None
    begun: bool = False  # whether `records` has given a position


@dataclass(slots=True)
class _Queued:
    place: Place
    unit: Unit | None  # None: its place is passed over
    handle: int = -1  # none before `until` allows the unit
    refusal: UnitError | None = None


@dataclass(slots=True)
class UnsealedShard:
    """The current shard, besides its records: the cursor before it, and the units skipped in it."""

    before: Cursor
    ended: int = 0  # units
    skipped: list[Skipped] = field(default_factory=list)
    skipped_bytes: int = 0


class Filling:
    """One stream at a cursor. `units`: the current listing of the units in the cursor's lanes, in the order
    of the lanes; None for a unit that is not listed any more.

    At most `most_lanes` units are in hand. `skips`: bytes of a shard that skipped units may take before the
    shard ends, None for no bound. `condemned`: units that are skipped without a try, with the reason.
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
        self._skips = skips
        self._condemned = condemned
        self._pass = cursor.pass_
        self._opened: Place = cursor.block, cursor.place  # behind the last unit that was opened
        self._fed: Place = self._opened  # behind the last unit that was listed here
        self._queue: deque[_Queued] = deque()  # that may be opened
        self._beyond: deque[_Queued] = deque()  # that `until` does not allow
        self._more: More = "listed"
        self._until = until
        self._lanes = [
            self._reopened(lane, unit) for lane, unit in zip(cursor.lanes, units, strict=True)
        ]
        self._active: list[_Lane] = []
        self._hand = 0
        self._changed = False  # lanes
        self._stops: dict[int, int] = {}
        self.part: UnsealedShard | None = None
        """The shard in hand, or the one that has just ended."""
        self._ended = True
        self.move_until(until)

    # --- what may be filled

    @property
    def queued(self) -> int:
        """Units that were appended and are not opened."""
        return len(self._queue) + len(self._beyond)

    @property
    def asks(self) -> bool:
        """Whether more units can be appended."""
        return self._more == "listed"

    def feed(self, block: int, place: int, units: Sequence[Unit | None], more: More) -> None:
        """Appends the units at (block, place) and the places after it. The stream passes over the place of
        a unit that is None. ValueError if the units do not follow the units before."""
        if units:
            follows = (block, place) == self._fed or (block > self._fed[0] and place == 0)
            if not follows:
                raise ValueError(
                    f"units from {(block, place)} on, expected {self._fed} or a new block"
                )
            for nth, unit in enumerate(units, place):
                self._beyond.append(_Queued((block, nth), unit))
            self._fed = block, place + len(units)
            self._admit()
        self._more = more

    def move_until(self, until: Cursor | None) -> None:
        """The stream may continue to this cursor; None: without end."""
        self._until = until
        self._stops = {}
        if until is not None and until.pass_ == self._pass:
            self._stops = {lane.unit: lane.record for lane in until.lanes}
        self._admit()
        self._count()

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
                if queued.refusal is None:  # what cannot be used costs no fetch
                    queued.handle = self._supply.add(queued.unit)
            self._queue.append(self._beyond.popleft())

    def _refusal(self, unit: Unit) -> UnitError | None:
        if condemned := self._condemned.get(unit.number):
            return condemned
        reason = self._supply.refusal(unit)
        return None if reason is None else UnitError(reason)

    def cursor(self) -> Cursor:
        """The stream's cursor."""
        return Cursor(
            self._pass,
            *self._opened,
            tuple(
                Lane(*lane.place, lane.unit.number, lane.etag, lane.size, *lane.position)
                for lane in self._lanes
            ),
        )

    # --- filling

    async def fill(self, draft: Draft) -> End:
        """Adds records to the draft until the shard ends, or "waits": then the next call continues. Errors
        of the supply end the stream, except a UnitError that is no shortage."""
        if self._ended or self.part is None:
            self.part, self._ended = UnsealedShard(self.cursor()), False
            for lane in self._lanes:
                lane.given, lane.begin = 0, None
        end = await self._fill(draft, self.part)
        self._ended = end != "waits"
        return end

    async def _fill(self, draft: Draft, part: UnsealedShard) -> End:
        breath = time.monotonic()
        while not draft.full:
            while self._has_room():
                if not self._queue:
                    if self._more != "end" and not self._beyond:
                        return "waits"
                    break
                self._open(part)
                if self._skips is not None and part.skipped_bytes >= self._skips:
                    return "skips"
            if not self._active:
                return "until" if self._lanes or self._beyond else "pass"
            self._begin(draft)
            lane = min(self._active, key=lambda each: (each.given, each.place))
            if time.monotonic() - breath > _BREATH:
                await asyncio.sleep(0)
                breath = time.monotonic()
            await self._step(lane, draft, part)
            self._supply.breathe()
            if self._skips is not None and part.skipped_bytes >= self._skips:
                return "skips"
        return "full"

    async def let_go(self) -> None:
        """Ends all lanes, and drops bytes that were fetched ahead. The stream keeps its cursor.
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
        """Whether a lane is free for the next unit, if there is one and `until` allows it."""
        if len(self._lanes) >= self._most_lanes:
            return False
        if not self._active:
            return True
        if self._hand >= IN_HAND:
            return False
        unit = self._queue[0].unit if self._queue else None
        return unit is None or self._hand + self._counts(unit) <= IN_HAND

    def _counts(self, unit: Unit) -> int:
        return 0 if self._stops.get(unit.number) == 0 else self._supply.in_hand(unit)

    def _open(self, part: UnsealedShard) -> None:
        """Takes the next unit in hand, or skips it."""
        queued = self._queue.popleft()
        (block, place), unit = queued.place, queued.unit
        self._opened = block, place + 1
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
            self._skip(lane, part, unit.record, queued.refusal)
            return
        self._lanes.append(lane)
        self._count()

    def _reopened(self, lane: Lane, listed: Unit | None) -> _Lane:
        """Opens the lane of a cursor again."""
        stale = ""
        if listed is None:
            listed, stale = Unit(lane.unit, "", lane.size), "gone: it is not listed any more"
        elif (etag_hash(listed.etag), listed.size) != (lane.etag, lane.size):
            stale = "rewritten: the listing has another version than the one in hand"
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

    async def _settle(self, lane: _Lane) -> None:
        """Finds the version in hand, although another version is listed. UnitError: the unit is skipped.
        The store may still have the version. It is read only up to `until`, because the records after
        `until` are live."""
        if not lane.unit.key or lane.unit.number not in self._stops:
            raise UnitError(lane.stale)
        etag, size = await self._supply.listed_as(lane.unit.key)
        if (etag_hash(etag), size) != (lane.etag, lane.size):
            raise UnitError(lane.stale)
        lane.unit, lane.stale = replace(lane.unit, etag=etag, size=size), ""
        lane.handle = self._supply.add(lane.unit)

    # --- giving

    def _begin(self, draft: Draft) -> None:
        """Starts fetching all lanes at once, before the first lane gives a record."""
        if self._changed:
            self._changed = False
            for lane in self._active:
                if lane.records is None and lane.handle >= 0:
                    lane.records = self._supply.pour(lane.handle, draft)

    async def _step(self, lane: _Lane, draft: Draft, part: UnsealedShard) -> None:
        """Adds or passes over one record of the lane, or a run of records; or ends the lane. A unit of
        which every record was passed over is skipped."""
        size, ordinals = draft.num_bytes, draft.ordinals
        self._supply.work(lane.unit)
        try:
            if error := self._condemned.get(lane.unit.number):
                raise error
            if lane.stale:
                await self._settle(lane)
            lane.records = lane.records or self._supply.pour(lane.handle, draft)
            stop = self._stops.get(lane.unit.number) if lane.begun else None
            lane.position = await lane.records.asend(stop)
            lane.begun = True
        except StopAsyncIteration:
            lane.given += draft.num_bytes - size
            self._end(lane)
            is_empty = lane.begin is not None and not lane.given
            if is_empty and (passed := draft.pop_passed(lane.unit)):
                self._skip(lane, part, lane.begin or 0, UnitError(passed[0].reason))
            else:
                part.ended += 1
                self._supply.leave(lane.handle)
            return
        except UnitError as error:
            if is_shortage(error):
                raise
            lane.given += draft.num_bytes - size
            self._end(lane)
            part.ended += bool(lane.given)
            self._skip(lane, part, lane.position[0] + draft.ordinals - ordinals, error)
            return
        lane.given += draft.num_bytes - size
        self._supply.reached(lane.handle, lane.position)
        if self._stands(lane):
            self._count()

    def _end(self, lane: _Lane) -> None:
        self._lanes.remove(lane)
        self._count()

    def _skip(self, lane: _Lane, part: UnsealedShard, record: int, error: UnitError) -> None:
        """Skips a unit from `record` on."""
        if lane.handle >= 0:
            self._supply.leave(lane.handle, error)
        unit = lane.unit
        part.skipped.append(
            Skipped(unit.number, unit.key, lane.etag, record, str(error), error.passing)
        )
        part.skipped_bytes += skipped_bytes(unit.key)

    def _stands(self, lane: _Lane) -> bool:
        """Whether the lane has reached `until`."""
        if self._until is not None and self._pass > self._until.pass_:
            return True
        stop = self._stops.get(lane.unit.number)
        return stop is not None and lane.position[0] >= stop

    def _count(self) -> None:
        """Updates the counts after a lane was opened, ended or reached `until`."""
        self._active = [lane for lane in self._lanes if not self._stands(lane)]
        self._hand = sum(lane.hand for lane in self._active)
        self._changed = True
