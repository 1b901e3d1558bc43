"""When reads from a store are retried, how often, and how many requests run at a time. Pure.

Three classes protect a failing store from more load. A `Retry` spreads one read's tries over time. A
`Budget` bounds the retries of all reads together: if most reads fail, the load stays close to the normal
load. A `Pace` lowers the number of requests at a time when the store throttles, and raises it when requests
succeed. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retry:
    """How long a failing read is retried: `tries` times, or for `within` seconds.

    Then cachecd.stores.fetch tests whether other objects can be read. The pause before each try is a
    random part of a span that doubles from `first` to `longest` (full jitter). So reads that failed
    together are not retried together.

    A try ends after `silence` seconds without data, or if it takes longer than these seconds plus the time
    at `slowest` bytes per second. So a slow link can read a large object, but a read that hardly advances
    ends.
    """

    tries: int = 7
    within: float = 30.0
    first: float = 0.5
    longest: float = 8.0
    silence: float = 30.0
    slowest: float = 64 << 10

    def pause(self, failures: int, chance: float) -> float:
        """Returns the seconds to wait after this many failures in a row; `chance` is uniform in [0, 1)."""
        # Capped, because a read may fail for hours, and a float cannot hold every power of two.
        return chance * min(self.longest, self.first * 2.0 ** min(failures - 1, 40))

    def patience(self, num_bytes: int, slow: int) -> float:
        """Returns the seconds in which a try must fetch this many bytes, after `slow` tries that were too
        slow.

        Each slow try doubles the part that grows with the size, up to eightfold. Over a slow link, fewer
        requests with more time succeed, but repetitions of the same request do not.
        """
        return self.silence + num_bytes / self.slowest * (1 << min(slow, 3))


class Budget:
    """A token bucket for the retries of one store's reads.

    A retry takes a token. Each success adds `per_success` tokens and each second `per_second`, up to
    `capacity`. So even a store that fails every read is tried once per second. A burst has at most
    `capacity` retries.
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
        """Returns the seconds until there is a token even without a success."""
        self._pass(now)
        return max(0.0, (1.0 - self._tokens) / self._per_second)

    def _pass(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self._capacity, self._tokens + (now - self._at) * self._per_second)
            self._at = now


class Pace:
    """How many requests a store gets at a time, between 1 and `most`.

    The number is halved when the store throttles, or is too slow for its requests. It grows by one after
    each `limit` successes. A failure does not halve it if its request was in flight at the last halving.
    `not_before`: the time at which the store wants the next request.
    """

    LONGEST = 60.0  # seconds: a longer Retry-After is shortened

    def __init__(self, most: int) -> None:
        self._most = most
        self._halved_at = float("-inf")
        self.limit = float(most)
        self.not_before = float("-inf")

    @property
    def allowed(self) -> int:
        """The number of requests at a time."""
        return int(self.limit)

    @property
    def is_lowered(self) -> bool:
        """Whether fewer than `most` requests may run at a time."""
        return self.limit < self._most

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
