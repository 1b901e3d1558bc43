"""Ingest stopped for a while that doubles with each failure in a row. Pure."""

from __future__ import annotations

from dataclasses import dataclass

# Tried again after 1 s, 2 s, 4 s ... but at least this often, so that ingest resumes within a minute
# of the repair.
LONGEST = 60.0


@dataclass(slots=True)
class Pause:
    """Of one dataset's source, or of the disk; `reason` is for people, "" when nothing is wrong, and
    `since` is when the trouble began.

    `shortest` is the length of the first, in seconds. `refused` is why it is stopped whatever the
    clock says, until that is "" again.
    """

    reason: str = ""
    until: float = 0.0
    since: float = 0.0
    shortest: float = 1.0
    refused: str = ""
    _length: float = 0.0

    @property
    def why(self) -> str:
        """Why it is stopped, or what it failed with when it was last tried; "" if it works."""
        return self.refused or self.reason

    def stops(self, now: float) -> bool:
        """Whether nothing is to be tried at this time."""
        return bool(self.refused) or now < self.until

    def begin(self, now: float, reason: str) -> None:
        """It failed (again)."""
        self.note(now, reason)
        # What was under way when it stopped, and fails too, says nothing new.
        if now >= self.until:
            self._length = min(max(self.shortest, 2 * self._length), LONGEST)
            self.until = now + self._length

    def note(self, now: float, reason: str) -> None:
        """It is in trouble, which pauses nothing."""
        if not self.reason:
            self.since = now
        self.reason = reason

    @property
    def failing(self) -> bool:
        """Whether it has failed and not worked to the end since: one at a time may try."""
        return self._length > 0

    def works(self, now: float) -> None:
        """Something comes again of what was tried after the pause."""
        if now >= self.until:
            self.reason = ""

    def end(self) -> None:
        """It works."""
        self.reason, self.until, self.since, self._length = "", 0.0, 0.0, 0.0
