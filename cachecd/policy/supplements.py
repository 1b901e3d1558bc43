"""Supplements: a whole dataset fetches its missing records again, into shards of stream S. Pure.

After a complete listing, at most once a day, a whole dataset searches for records that its live shards
lack. A unit that fails again waits for a day, then two days, and so on up to a week.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cachecd.policy.events import MissingFound, ShardSealed, StreamFailed
from cachecd.policy.pause import Pause
from cachecd.policy.values import Piece

DAY = 86400.0
_LONGEST = 7  # days
_AT_ONCE = 1024  # pieces of one supplement
_MOST_FAILED = 10_000  # units whose failures are remembered


@dataclass(slots=True, eq=False)
class Supplements:
    """Stream S, which makes one shard at a time. `next`: the j of its next shard. `tried`: the number of
    complete listings at the last search. `due`: when the next search may begin. `begin`: the first unit
    of the next search, above 0 if the last search found too many records. `pieces`: the records to fetch.
    `lacks_room`: they have no room. `making`: the pieces of the shard that is being written. `sealed`:
    the shard that is being published. `closing`: the number of expected StreamClosed events. `retry_at`:
    for each unit that failed, the days to wait and the time of its next try."""

    next: int = 0
    tried: int = 0
    due: float = 0.0
    searching: bool = False
    begin: int = 0
    lacks_room: bool = False
    pieces: tuple[Piece, ...] = ()
    making: tuple[Piece, ...] = ()
    sealed: ShardSealed | None = None
    closing: int = 0
    pause: Pause = field(default_factory=Pause)
    retry_at: dict[int, tuple[int, float]] = field(default_factory=dict)

    @property
    def reserved(self) -> int:
        """How many shards have reserved room."""
        return bool(self.making) + (self.sealed is not None)

    def try_again(self) -> None:
        """Lets the next search begin at once, because a supplement is lost."""
        self.tried, self.due = 0, 0.0

    def search(self, completed: int, now: float) -> bool:
        """Begins a search for missing records if it is due. Returns whether a search begins."""
        idle = not (self.searching or self.pieces or self.reserved)
        begins = idle and (self.begin > 0 or (completed > self.tried and now >= self.due))
        if begins:
            self.searching, self.tried, self.due = True, completed, now + DAY
        return begins

    def note_missing(self, event: MissingFound, now: float, is_whole: bool) -> None:
        """Handles the result of a search. Drops the result if the dataset is no longer whole."""
        self.searching = False
        if is_whole:
            wait = {unit for unit, (_, until) in self.retry_at.items() if until > now}
            self.pieces = tuple(piece for piece in event.pieces if piece.unit not in wait)
            self.begin = event.pieces[-1].unit + 1 if event.more else 0
        else:
            self.try_again()

    def start(self) -> tuple[Piece, ...]:
        """Returns the pieces of the next supplement, for which room is reserved."""
        self.making, self.pieces = self.pieces[:_AT_ONCE], self.pieces[_AT_ONCE:]
        return self.making

    def finish(self, event: ShardSealed, now: float) -> None:
        """Handles a sealed shard. Its skipped units wait for the next search. If the shard has no record,
        all of its units wait."""
        if self.closing or not self.making:
            return
        self.pause.end()
        skipped = {skip.unit for skip in event.skipped}
        after = event.after
        left = tuple(self.making[lane.place]._replace(record=lane.record) for lane in after.lanes)
        left += self.making[after.place :]
        for unit in {piece.unit for piece in self.making} - {piece.unit for piece in left}:
            if unit in skipped or not event.facts.records:
                self._wait(unit, now)
            else:
                self.retry_at.pop(unit, None)
        self.pieces, self.making = left + self.pieces, ()
        self.sealed = event if event.facts.records else None

    def published(self) -> ShardSealed:
        sealed, self.sealed, self.next = self.sealed, None, self.next + 1
        assert sealed is not None
        return sealed

    def failed(self, event: StreamFailed, now: float) -> None:
        """Handles the loss of the shard in a worker. The open unit waits for the next search."""
        if event.cause == "worker":
            self.pause.begin(now, event.reason)
        unit = event.unit if event.cause == "worker" else None
        if unit is not None:
            self._wait(unit, now)
        self.pieces = tuple(piece for piece in self.making + self.pieces if piece.unit != unit)
        self.making = ()

    def forget(self) -> None:
        """Drops the result of the last search, because a stream continues, or the disk refuses."""
        if self.pieces or self.begin or self.reserved:
            self.try_again()
        self.pieces, self.begin, self.lacks_room = (), 0, False

    def closed(self) -> None:
        """Handles StreamClosed: the sealed shard is removed."""
        self.closing = max(0, self.closing - 1)
        if not self.closing:
            self.making, self.sealed = (), None

    def _wait(self, unit: int, now: float) -> None:
        """Lets a unit that failed again wait one day longer than the last time."""
        days = min(self.retry_at.get(unit, (0, 0.0))[0] + 1, _LONGEST)
        if len(self.retry_at) < _MOST_FAILED or unit in self.retry_at:
            self.retry_at[unit] = days, now + days * DAY
