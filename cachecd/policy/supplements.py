"""Supplements: a whole dataset fetches missing records again, in shards of stream S. Pure.

After a complete listing, once a day at most, a whole dataset searches the records that its
live shards lack.
Units that fail again wait for a day, then two, up to a week.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cachecd.policy.events import MissingFound, Sealed
from cachecd.policy.values import Piece

DAY = 86400.0
_LONGEST = 7  # days
_AT_ONCE = 1024  # pieces of one supplement
_MOST_FAILED = 10_000  # units whose failures are remembered


@dataclass(slots=True)
class Supplements:
    """`next`: the j of the next supplement. `tried`: the number of complete listings when everything was
    tried. `pieces` are to be made; `lacks_room`: they find no room. `making` is being written, and `sealed`
    is finished and being published. `wait` holds (days, time) for units that failed."""

    next: int = 0
    tried: int = 0
    due: float = 0.0
    searching: bool = False
    begin: int = 0
    more: bool = False
    lacks_room: bool = False
    pieces: tuple[Piece, ...] = ()
    making: tuple[Piece, ...] = ()
    sealed: Sealed | None = None
    closing: bool = False
    wait: dict[int, tuple[int, float]] = field(default_factory=dict)

    @property
    def reserved(self) -> int:
        """How many supplements have reserved room."""
        return bool(self.making) + (self.sealed is not None)

    def try_again(self) -> None:
        """A supplement is lost: search without waiting for a day."""
        self.tried, self.due = 0, 0.0

    def is_due(self, completed: int, now: float) -> bool:
        """Whether to search for missing records."""
        idle = not (self.searching or self.pieces or self.reserved)
        return idle and (self.more or (completed > self.tried and now >= self.due))

    def search(self) -> int:
        """Begins a search; returns the unit at which it begins."""
        self.searching = True
        self.begin = self.begin if self.more else 0
        return self.begin

    def note_missing(self, event: MissingFound, completed: int, now: float, is_whole: bool) -> None:
        """The result of a search; it does not count if the dataset is no longer whole."""
        self.searching, self.more = False, event.more and is_whole
        if not is_whole:
            return
        if event.pieces:
            self.begin = event.pieces[-1].unit + 1
        self.pieces = tuple(p for p in event.pieces if self.wait.get(p.unit, (0, 0.0))[1] <= now)
        self._end(completed, now)

    def _end(self, completed: int, now: float) -> None:
        if not (self.pieces or self.making or self.more):
            self.tried, self.due = completed, now + DAY

    def start(self) -> tuple[Piece, ...]:
        """The pieces of the next supplement, for which room was reserved."""
        self.making, self.pieces = self.pieces[:_AT_ONCE], self.pieces[_AT_ONCE:]
        return self.making

    def finished(self, event: Sealed, completed: int, now: float) -> None:
        """A supplement is sealed; units that it skipped wait."""
        self.pieces = event.left + self.pieces
        skipped = {skip.unit for skip in event.skipped}
        for unit in skipped:
            self.failed(unit, now)
        for piece in self.making:
            if piece.unit not in skipped:
                self.wait.pop(piece.unit, None)
        self.making = ()
        self.sealed = event if event.facts.records else None
        self._end(completed, now)

    def failed(self, unit: int, now: float) -> None:
        """A unit failed again: it waits a day longer than the last time."""
        days = min(self.wait.get(unit, (0, 0.0))[0] + 1, _LONGEST)
        if len(self.wait) < _MOST_FAILED or unit in self.wait:
            self.wait[unit] = days, now + days * DAY

    def lost(self, unit: int | None, now: float) -> None:
        """The worker failed, with this unit in hand."""
        if unit is not None:
            self.failed(unit, now)
        self.pieces = tuple(p for p in self.making + self.pieces if p.unit != unit)
        self.making = ()

    def abandon(self) -> bool:
        """A stream goes on: its next pass has the missing records. True if the worker has to stop."""
        close = bool(self.reserved) and not self.closing
        self.closing = self.closing or close
        self.pieces, self.more, self.lacks_room = (), False, False
        return close

    def closed(self) -> None:
        """The worker has stopped, and its sealed supplement is gone."""
        self.making, self.sealed, self.closing = (), None, False
