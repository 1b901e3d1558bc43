"""Failures of the disk and of sources: each is logged when it begins, while it lasts, and when it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

_QUIET = 60.0  # seconds between two log lines about a subject that fails and recovers repeatedly
_AGAIN = 600.0  # seconds between two log lines about a failure that lasts

_log = structlog.get_logger("cachecd.daemon")


@dataclass(slots=True)
class _Subject:
    """`reason`: why the subject fails, or "" if it works. `since`: when the failure began. `logged`: when a
    failure was last logged. `is_logged`: the last log line reported a failure."""

    reason: str = ""
    since: float = 0.0
    logged: float = -math.inf
    is_logged: bool = False


class Failures:
    """The failures of each subject: the disk, the source of a dataset, or a task of the daemon."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._subjects: dict[str, _Subject] = {}

    @property
    def reasons(self) -> dict[str, str]:
        """The reasons of all current failures, by subject."""
        subjects = list(self._subjects.items())  # another thread may add a subject
        return {name: each.reason for name, each in subjects if each.reason}

    def note(self, subject: str, reason: str, patience: float = 0.0, verb: str = "fails") -> bool:
        """Sets the state of a subject. `reason`: why it fails now, or "" if it works. A failure is logged
        after `patience` seconds, and every ten minutes. Returns whether it was logged now. `verb`:
        "fails", "stops" if the configuration or other programs are the cause, or "waits" for a pause,
        which is not logged as a warning."""
        known = self._subjects.setdefault(subject, _Subject())
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
            _log.info(f"{subject} {'works again' if verb == 'fails' else 'continues'}")
        return False

    def seconds(self, subject: str) -> float:
        """Returns how long a subject has been failing, or 0 if it works."""
        known = self._subjects.setdefault(subject, _Subject())
        return self._clock() - known.since if known.reason else 0.0
