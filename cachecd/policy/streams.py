"""Streams: the cursor of each stream, the next shard, and the limit of its reading (`until`). Pure.

A stream may continue up to `until`: the cursor before its oldest shard, in the next pass. So no set names
a record twice. `until` moves only when the mark or the unlink of the oldest shard is durable, because a
start might consider the shard live before.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from cachecd.model import Condemned, Cursor, Place, Shape
from cachecd.policy.events import ShardSealed, StreamFailed
from cachecd.policy.pause import Pause

# A unit is skipped after this many deaths of a worker that had it open. The second number counts if the
# deaths may have other causes: such a death causes no pause until the unit is skipped.
_DEATHS, _PASSING_DEATHS = 2, 3


@dataclass(slots=True)
class Blocks:
    """The blocks of a generation's listing, by their ends. `is_growing`: the first listing is running, so
    a stream waits at the end of the listed units."""

    shape: Shape
    ends: Sequence[int] = ()
    is_growing: bool = True

    def next_place(self, stream: int, cursor: Cursor) -> Place | None:
        """Returns the next unit of this pass, or None if every listed unit was opened."""
        place = cursor.place
        for block in range(cursor.block, len(self.ends)):
            if place < self.shape.units_in(stream, block, self.ends):
                return block, place
            place = 0
        return None

    def begin(self, stream: int, cursor: Cursor) -> Cursor | None:
        """Returns the cursor at which the shard after a cursor begins, or None if no unit can follow. A
        pass includes all blocks that end before the next pass begins."""
        if cursor.lanes or self.next_place(stream, cursor) is not None:
            return cursor
        if self.is_growing or not self.shape.units_of(stream, self.ends):
            return None
        return cursor.next_pass()

    def may_feed(self, stream: int, cursor: Cursor, until: Cursor) -> bool:
        """Whether a stream can read a record between a cursor and `until`."""
        if cursor.pass_ > until.pass_:
            return False
        here = self.next_place(stream, cursor)
        last_pass = cursor.pass_ == until.pass_
        if here is not None and (not last_pass or here < (until.block, until.place)):
            return True
        stops = {lane.unit: lane.record for lane in until.lanes} if last_pass else {}
        return any(
            lane.unit not in stops or lane.record < stops[lane.unit] for lane in cursor.lanes
        )

    def covered(self, stream: int, cursor: Cursor) -> float:
        """Returns the number of a stream's units before a cursor, across passes. Open units count in
        part."""
        if cursor.pass_:
            return self.shape.units_of(stream, self.ends)
        whole = range(min(cursor.block, len(self.ends)))
        opened = (
            sum(self.shape.units_in(stream, block, self.ends) for block in whole) + cursor.place
        )
        parts = (min(1.0, lane.offset / lane.size) if lane.size else 0.0 for lane in cursor.lanes)
        return opened - len(cursor.lanes) + sum(parts)

    def place(self, stream: int, cursor: Cursor, units: int) -> int:
        """Returns the place g of a stream's next unit, counted across passes of `units` units."""
        here = self.next_place(stream, cursor)
        g = units if here is None else self.shape.g_of(stream, *here, self.ends)
        return cursor.pass_ * units + g

    def cursor_at(self, stream: int, g: int) -> Cursor:
        """Returns the cursor of a stream before its first unit at place g or later."""
        begin = 0
        for block, end in enumerate(self.ends):
            if g < end:
                return Cursor(0, block, self.shape.units_in(stream, 1, (begin, g)))
            begin = end
        return Cursor(0, len(self.ends), 0)


@dataclass(slots=True, eq=False)
class Stream:
    """The head of one stream.

    `next`: the j of the next shard to be published, which begins at `cursor`. `sealed`: the sealed shards
    that are not published yet, in order. `publishing`: the first sealed shard is being published.
    `granted`: the j of each granted shard that is not sealed, in order. `half`: the first granted shard
    is half full. `behind`: the j after the last sealed shard. `open`: a worker has the stream. `reopen`:
    the stream must begin again, at another cursor. `fresh`: the worker has done nothing since the stream
    was opened. `closing`: the number of expected StreamClosed events. `tail`: the oldest shard and the
    cursor before it.
    """

    index: int
    blocks: Blocks
    next: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    sealed: deque[ShardSealed] = field(default_factory=deque)
    publishing: bool = False
    granted: deque[int] = field(default_factory=deque)
    behind: int = 0
    half: bool = False
    open: bool = False
    reopen: bool = False
    fresh: bool = False
    closing: int = 0
    until: Cursor | None = None  # the last value sent to the worker
    tail: tuple[int, Cursor] | None = None
    reading_tail: int | None = None
    oldest: int | None = None  # the first j that a start might consider live
    stalled: bool = False  # the worker found no record, although the cursors have not met
    pause: Pause = field(default_factory=Pause)
    deaths: dict[int, int] = field(default_factory=dict)
    condemned: tuple[Condemned, ...] = ()
    _begin: tuple[Cursor | None] | None = None  # cached

    @property
    def tip(self) -> Cursor:
        """The cursor after the last sealed shard."""
        return self.sealed[-1].after if self.sealed else self.cursor

    @property
    def wanted(self) -> int:
        """The j of the first shard without reserved room."""
        return self.granted[-1] + 1 if self.granted else self.behind

    @property
    def reserved(self) -> int:
        """How many shards have reserved room."""
        return len(self.sealed) + len(self.granted)

    @property
    def allowed_until(self) -> Cursor | None:
        """Returns the cursor up to which the stream may continue, or None if it is not known yet, or if
        no unit follows. Until the cursor before a new oldest shard is read, the cursor before the
        previous oldest shard counts, which is smaller."""
        if self.oldest is not None:
            first = self.tail[1] if self.tail else None
        elif self.sealed:
            first = self.sealed[0].before
        else:
            first = self.blocks.begin(self.index, self.tip)
        return first and dataclasses.replace(first, pass_=first.pass_ + 1)

    @property
    def begin(self) -> Cursor | None:
        """Returns the cursor at which the next shard begins, or None if there is no unit to fetch."""
        if self._begin is None:
            cursor, until = self.blocks.begin(self.index, self.tip), self.allowed_until
            may = cursor and until and self.blocks.may_feed(self.index, cursor, until)
            self._begin = (cursor if may and not self.stalled else None,)
        return self._begin[0]

    @property
    def feeds(self) -> bool:
        """Whether the stream is making a shard, or may begin one."""
        return bool(self.reserved) or self.begin is not None

    def changed(self) -> None:
        """Clears cached values that depend on the cursor, `until` or the listing."""
        self._begin, self.stalled = None, False

    def note_oldest(self, oldest: int | None) -> None:
        """Sets the oldest shard that a start might consider live."""
        if oldest != self.oldest:
            self.oldest = oldest
            if oldest is None:
                self.tail = None
            self.changed()

    def opened(self, until: Cursor) -> None:
        """Notes that a worker has the stream."""
        self.open, self.fresh, self.reopen, self.until = True, True, False, until

    def finish(self, j: int, event: ShardSealed) -> None:
        if self.closing or j not in self.granted:
            return
        self.granted.remove(j)
        self.half = False
        self.pause.end()
        self.deaths.clear()
        skipped = {skip.unit for skip in event.skipped}
        self.condemned = tuple(each for each in self.condemned if each.unit not in skipped)
        self.changed()
        if event.after != event.before or event.skipped:
            self.sealed.append(event)
            self.behind, self.reopen = j + 1, False
        elif self.fresh and not self.granted:
            self.stalled = True
        else:  # the worker ended its pass, or had an older `until`
            self.reopen = True
        self.fresh = False

    def published(self, j: int) -> ShardSealed:
        sealed = self.sealed.popleft()
        if self.oldest is None:
            self.oldest, self.tail = j, (j, sealed.before)
        self.next, self.cursor, self.publishing = j + 1, sealed.after, False
        self.changed()
        return sealed

    def closed(self) -> None:
        """Handles StreamClosed. After the last one that is expected, forgets the sealed shards, which are
        removed."""
        self.closing = max(0, self.closing - 1)
        if not self.closing:
            self.sealed.clear()
            self.behind, self.publishing = self.next, False
            self._lost()

    def _lost(self) -> None:
        self.granted.clear()
        self.half = self.open = self.reopen = False
        self._begin = None

    def failed(self, event: StreamFailed, now: float) -> None:
        """Handles the failure of the stream in its worker. If the stream may be the cause, it is opened
        again after a pause. A unit that was open at two deaths of a worker is skipped. If the deaths may
        have other causes, it is skipped after three."""
        is_skipped = False
        if event.cause == "worker" and event.unit is not None:
            deaths = self.deaths[event.unit] = self.deaths.get(event.unit, 0) + 1
            is_skipped = deaths >= (_PASSING_DEATHS if event.passing else _DEATHS)
            if is_skipped:
                del self.deaths[event.unit]
                self.condemned += (Condemned(event.unit, event.reason, event.passing),)
        if event.cause == "worker" and (is_skipped or not event.passing):
            self.pause.begin(now, event.reason)
        self._lost()
