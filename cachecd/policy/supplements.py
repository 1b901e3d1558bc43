"""Supplements: a whole dataset fetches missing records again, in shards of stream S. Pure.

After a complete listing, once a day at most, a whole dataset searches the records that its live shards
lack. Units that fail again wait for a day, then two, up to a week.
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
    tried. `begin`: the unit at which the next search begins; above 0, the last search has found more.
    `pieces` are to be made; `lacks_room`: they find no room. `making` is being written, and `sealed` is
    finished and being published. `wait` holds (days, time) for units that failed."""

    next: int = 0
    tried: int = 0
    due: float = 0.0
    searching: bool = False
    begin: int = 0
    lacks_room: bool = False
    pieces: tuple[Piece, ...] = ()
    making: tuple[Piece, ...] = ()
    sealed: Sealed | None = None
    closing: bool = False
    wait: dict[int, tuple[int, float]] = field(default_factory=dict)

    @property
    def reserved(self) -> int:
        return bool(self.making) + (self.sealed is not None)

    def try_again(self) -> None:
        """A supplement is lost: search without waiting for a day."""
        self.tried, self.due = 0, 0.0

    def is_due(self, completed: int, now: float) -> bool:
        """Whether to search for missing records."""
        idle = not (self.searching or self.pieces or self.reserved)
        return idle and (self.begin > 0 or (completed > self.tried and now >= self.due))

    def note_missing(self, event: MissingFound, completed: int, now: float, is_whole: bool) -> None:
        """The result of a search; it does not count if the dataset is no longer whole."""
        self.searching, self.begin = False, 0
        if is_whole:
            waits = {unit for unit, (_, until) in self.wait.items() if until > now}
            self.pieces = tuple(piece for piece in event.pieces if piece.unit not in waits)
            self.begin = event.pieces[-1].unit + 1 if event.more else 0
            self._note_end(completed, now)

    def start(self) -> tuple[Piece, ...]:
        """The pieces of the next supplement, for which room was reserved."""
        self.making, self.pieces = self.pieces[:_AT_ONCE], self.pieces[_AT_ONCE:]
        return self.making

    def finished(self, event: Sealed, completed: int, now: float) -> None:
        """A supplement is sealed. Units that it skipped wait; so do all of them if it has no record."""
        skipped = {skip.unit for skip in event.skipped}
        for unit in {piece.unit for piece in self.making} - {piece.unit for piece in event.left}:
            if unit in skipped or not event.facts.records:
                self._failed(unit, now)
            else:
                self.wait.pop(unit, None)
        self.pieces, self.making = event.left + self.pieces, ()
        self.sealed = event if event.facts.records else None
        self._note_end(completed, now)

    def published(self) -> Sealed:
        sealed, self.sealed, self.next = self.sealed, None, self.next + 1
        assert sealed is not None
        return sealed

    def lost(self, unit: int | None, now: float) -> None:
        """The worker failed, with this unit in hand."""
        if unit is not None:
            self._failed(unit, now)
        self.pieces = tuple(p for p in self.making + self.pieces if p.unit != unit)
        self.making = ()

    def abandon(self) -> bool:
        """A stream goes on: its next pass has the missing records. True if the worker has to stop."""
        close = bool(self.reserved) and not self.closing
        self.closing = self.closing or close
        self.pieces, self.begin, self.lacks_room = (), 0, False
        return close

    def closed(self) -> None:
        """The worker has stopped, and its sealed supplement is gone."""
        self.making, self.sealed, self.closing = (), None, False

    def _note_end(self, completed: int, now: float) -> None:
        if not (self.pieces or self.making or self.begin):
            self.tried, self.due = completed, now + DAY

    def _failed(self, unit: int, now: float) -> None:
        """A unit failed again: it waits a day longer than the last time."""
        days = min(self.wait.get(unit, (0, 0.0))[0] + 1, _LONGEST)
        if len(self.wait) < _MOST_FAILED or unit in self.wait:
            self.wait[unit] = days, now + days * DAY
