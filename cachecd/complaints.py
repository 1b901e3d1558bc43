"""What the disk refuses at present, beside the making of shards: said, but not over and over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from cachecd.errors import DiskError
from cachecd.pause import Pause

_log = structlog.get_logger("cachecd.disk")


@dataclass(slots=True)
class _Complaint:
    """Of one kind: `why` by what it is about, with the time till when that is shown; how often it was not
    said since it last was."""

    why: dict[str, tuple[str, float]] = field(default_factory=dict)
    pause: Pause = field(default_factory=Pause)
    unsaid: int = 0


class Complaints:
    """Failures that are retried until they are over, by kind (an event of the log) and subject.

    The first of a kind is logged at once, then one after 1 s, 2 s, 4 s ... up to a minute, with how
    many were not: a disk that refuses a thousand leases four times a second fills no disk with log.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[str, _Complaint] = {}

    @property
    def reason(self) -> str:
        """What is refused at present, for people; "" if nothing is."""
        now = self._clock()
        standing = ([w for w, until in c.why.values() if now < until] for c in self._kinds.values())
        return "; ".join(whys[0] for whys in standing if whys)

    def refused(self, what: str, subject: str, why: str, stands: float = math.inf) -> bool:
        """It failed (again); whether the log says so now. `stands`: seconds for which it is shown, of what
        nobody may try again."""
        kind = self._kinds.setdefault(what, _Complaint())
        now = self._clock()
        kind.why[subject] = why, now + stands
        if now < kind.pause.until:
            kind.unsaid += 1
            return False
        _log.warning(what, subject=subject, why=why, unsaid=kind.unsaid)
        kind.unsaid = 0
        kind.pause.begin(now, why)
        return True

    def works(self, what: str, subject: str) -> None:
        """It did not fail, or is not wanted any more."""
        kind = self._kinds.get(what)
        if kind and kind.why.pop(subject, None) is not None and not kind.why:
            _log.info("disk works again", what=what)
            if self._clock() >= kind.pause.until:  # one that comes and goes keeps its pause
                del self._kinds[what]

    @contextmanager
    def hearing(self, what: str, subject: str = "") -> Iterator[None]:
        """A refusal within is noted and outlived; an end without one means that it works."""
        try:
            yield
        except (DiskError, OSError) as error:
            self.refused(what, subject, str(error))
        else:
            self.works(what, subject)
