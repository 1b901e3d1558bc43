"""Failures of disks and sources: each is logged once, and once more when it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

_QUIET = 60.0  # seconds between two complaints about a subject that fails and works in turns

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

    def note(self, subject: str, reason: str, patience: float = 0.0) -> bool:
        """`reason`: why the subject fails now, "" if it works. A failure is logged after `patience`
        seconds. Returns whether it was logged."""
        known = self._subjects.get(subject)
        if known is None:
            if not reason:
                return False
            known = self._subjects[subject] = _Subject()
        now = self._clock()
        if not known.reason:
            known.since = now
        known.reason = reason
        due = now >= max(known.since + patience, known.logged + _QUIET)
        if reason and not known.is_logged and due:
            known.is_logged, known.logged = True, now
            _log.warning(f"{subject} fails", why=reason)
            return True
        if not reason and known.is_logged:
            known.is_logged = False
            _log.info(f"{subject} works again")
        return False

    def seconds(self, subject: str) -> float:
        """For how long a subject has been failing; 0 if it works."""
        known = self._subjects.get(subject)
        return self._clock() - known.since if known and known.reason else 0.0
