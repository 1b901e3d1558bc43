"""Units that were set aside for a reason that may pass, and when each is tried again. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from cachecd.model import SetAside

FIRST = 3600.0  # seconds after which a unit is tried again; twice as long after each failure
LONGEST = 24 * 3600.0


class SecondChances:
    """One dataset's.

    Tried again are only those with `passing`: refused, or lost to a server that failed; what cannot
    be decoded, is gone or has changed is not. While the daemon runs, that is after an hour, then
    after two, and so on up to a day. What a start finds set aside waits for the source to be listed:
    then it is there. A `pinned` dataset is one set for all epochs, so its units are tried again after
    a listing alone.
    """

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._due: list[tuple[float, int]] = []  # a heap
        self._until_listed: list[int] = []
        self._failures: dict[int, int] = {}

    def found(self, asides: Iterable[SetAside]) -> None:
        """Set aside in an earlier run."""
        self._until_listed += [aside.unit for aside in asides if aside.passing]

    def gave_up(self, asides: Iterable[SetAside], now: float) -> None:
        """Set aside just now."""
        for aside in asides:
            if not aside.passing:
                self._failures.pop(aside.unit, None)
            elif self._pinned:
                self._until_listed.append(aside.unit)
            else:
                self._failures[aside.unit] = self._failures.get(aside.unit, 0) + 1
                heappush(self._due, (now + self._wait_of(aside.unit), aside.unit))

    def put_off(self, units: Iterable[int], now: float) -> None:
        """Their time had come, and they cannot be tried yet: they are again after the same wait."""
        waiting = {*(unit for _, unit in self._due), *self._until_listed}
        units = [unit for unit in units if unit not in waiting]
        if self._pinned:
            self._until_listed += units
        else:
            for unit in units:
                heappush(self._due, (now + self._wait_of(unit), unit))

    def _wait_of(self, unit: int) -> float:
        return min(FIRST * 2.0 ** min(max(self._failures.get(unit, 0) - 1, 0), 10), LONGEST)

    def listed(self, now: float) -> None:
        """The store was asked for its listing, and has answered."""
        self._due += [(now, unit) for unit in self._until_listed]
        heapify(self._due)
        self._until_listed.clear()

    def take(self, now: float) -> tuple[int, ...]:
        """Those whose time has come; each is handed out once."""
        taken = []
        while self._due and self._due[0][0] <= now:
            taken.append(heappop(self._due)[1])
        return tuple(taken)
