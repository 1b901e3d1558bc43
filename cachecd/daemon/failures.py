"""What fails, stops or waits: each is logged at once, again while it lasts, and once more when it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

_QUIET = 60.0  # seconds between two complaints about a subject that fails and works in turns
_AGAIN = 600.0  # seconds between two complaints about a failure that lasts

_log = structlog.get_logger("cachecd.daemon")


@dataclass(slots=True)
class _Subject:
    """`reason`: why the disk or source fails, "" if it works. `since`: when the failure began. `logged`:
    when a failure was last logged. `is_logged`: the last log line was a failure."""

    reason: str = ""
    since: float = 0.0
    logged: float = -math.inf
    is_logged: bool = False


class Failures:
    """By subject: the disk, or the source of a dataset."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._subjects: dict[str, _Subject] = {}

    @property
    def reasons(self) -> dict[str, str]:
        """The reason of each present failure, by subject."""
        return {name: each.reason for name, each in self._subjects.items() if each.reason}

    def note(self, subject: str, reason: str, patience: float = 0.0, verb: str = "fails") -> bool:
        """`reason`: why the subject fails now, "" if it works. A failure is logged after `patience`
        seconds, and every ten minutes. Returns whether it was logged. `verb`: "fails", or "stops" for what
        the configuration or other programs cause, or "waits" for a pause, which is no warning."""
        known = self._subjects.get(subject)
        if known is None:
            if not reason:
                return False
            known = self._subjects[subject] = _Subject()
        now = self._clock()
        if not known.reason:
            known.since = now
        known.reason = reason
        quiet = _AGAIN if known.is_logged else _QUIET
        if reason and now >= max(known.since + patience, known.logged + quiet):
            known.is_logged, known.logged = True, now
            log = _log.info if verb == "waits" else _log.warning
            log(f"{subject} {verb}", why=reason)
            return True
        if not reason and known.is_logged:
            known.is_logged = False
            _log.info(f"{subject} {'works again' if verb == 'fails' else 'goes on'}")
        return False

    def seconds(self, subject: str) -> float:
        """For how long a subject has been failing; 0 if it works."""
        known = self._subjects.get(subject)
        return self._clock() - known.since if known and known.reason else 0.0
