"""Retries of reads from a store: when, how many in all, and how many requests at a time. Pure.

Three figures keep a store in trouble from getting more load. A `Retry` spreads one read's tries over time.
A `Budget` bounds the retries of all reads together: if most reads fail, the load stays close to the normal
load. A `Pace` lowers the number of requests at a time when the store throttles, and raises it as requests
succeed. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retry:
    """How long a failing read is retried: `tries` times, or for `within` seconds.

    After that, the state of other objects decides (cachecd.stores.fetch). The pause before each try is a
    random part of a span that doubles from `first` to `longest` (full jitter), so that many readers that
    failed together do not return together.

    A try ends after `silence` seconds without data, or when its rate falls below `slowest` bytes a second
    beyond these seconds. So a large object over a slow link is not cut off, but one that only drips is.
    """

    tries: int = 7
    within: float = 30.0
    first: float = 0.5
    longest: float = 8.0
    silence: float = 30.0
    slowest: float = 64 << 10

    def pause(self, failures: int, chance: float) -> float:
        """Returns the seconds to wait after this many failures in a row; `chance` is uniform in [0, 1)."""
        # Capped: a read may fail for hours, and floats do not take every power of two.
        return chance * min(self.longest, self.first * 2.0 ** min(failures - 1, 40))

    def patience(self, num_bytes: int, slow: int) -> float:
        """Returns the seconds in which a try must fetch this many bytes, after `slow` tries that were too
        slow.

        Each slow try doubles the part that grows with the size, up to eightfold. If everything is slow,
        fewer requests with more time succeed, and a repetition of the same request does not.
        """
        return self.silence + num_bytes / self.slowest * (1 << min(slow, 3))


class Budget:
    """A token bucket for the retries of one store's reads.

    A retry takes a token. Every success returns a part of a token, and so does time: a store that fails
    every read is still tried once a second. In any span of time there are at most `capacity` retries, plus
    one for each 1 / `per_success` successes and for each 1 / `per_second` seconds.
    """

    def __init__(
        self, capacity: float = 100.0, per_success: float = 0.2, per_second: float = 1.0
    ) -> None:
        self._capacity = capacity
        self._per_success = per_success
        self._per_second = per_second
        self._tokens = capacity
        self._at = 0.0

    def succeeded(self, now: float) -> None:
        """Notes a successful read."""
        self._pass(now)
        self._tokens = min(self._capacity, self._tokens + self._per_success)

    def take(self, now: float) -> bool:
        """Takes a token. Returns whether there was one."""
        self._pass(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def wait(self, now: float) -> float:
        """Returns the seconds until time alone returns a token."""
        self._pass(now)
        return max(0.0, (1.0 - self._tokens) / self._per_second)

    def _pass(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self._capacity, self._tokens + (now - self._at) * self._per_second)
            self._at = now


class Pace:
    """How many requests a store gets at a time, between 1 and `most`.

    The number is halved when the store throttles, or is too slow for its requests; it grows by one after
    each `limit` successes. Failures of requests that were in flight at the last halving do not count again.
    `not_before`: the time at which the store wants the next request.
    """

    LONGEST = 60.0  # seconds for which a store may send us away: it is asked again within a minute

    def __init__(self, most: int) -> None:
        self._most = most
        self._halved_at = float("-inf")
        self.limit = float(most)
        self.not_before = float("-inf")

    @property
    def allowed(self) -> int:
        """The number of requests at a time."""
        return int(self.limit)

    def succeeded(self) -> None:
        """Notes a successful request."""
        self.limit = min(float(self._most), self.limit + 1.0 / self.limit)

    def overloaded(self, now: float, began: float, after: float = 0.0) -> None:
        """Notes that a request that began at `began` was throttled or too slow; `after`: the store's
        Retry-After."""
        if began >= self._halved_at:
            self.limit = max(1.0, self.limit / 2)
            self._halved_at = now
        if after > 0:
            self.not_before = max(self.not_before, now + min(after, self.LONGEST))
