"""How patient reads from a store are: when to try again, how many retries in all, how many at once. Pure.

Three figures keep a store in trouble from getting more to do because of it. A `Retry` spreads one
read's tries over time. A `Budget` bounds the retries of all reads together, so that when most fail,
the load stays near what it is when none does. A `Pace` lowers the number of requests at a time when
the store asks for fewer, and raises it again as they succeed. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retry:
    """How long a failing read is tried again: `tries` times, or for `within` seconds.

    Then it depends on whether other objects can be read (cachecd.stores.fetch). The pause before
    each try is a random part of a span that doubles from `first` to `longest` (full jitter), so that
    many readers that failed together do not come back together.

    One try ends when nothing has come for `silence` seconds, or when so little has come that it was
    less than `slowest` bytes a second beyond these: a minimum rate, so that a large object over a slow
    link is not cut off and one that drips is.
    """

    tries: int = 7
    within: float = 30.0
    first: float = 0.5
    longest: float = 8.0
    silence: float = 30.0
    slowest: float = 64 << 10

    def pause(self, failures: int, chance: float) -> float:
        """Seconds to wait after this many failures in a row; `chance` is uniform in [0, 1)."""
        # Capped: a read may fail for hours, and floats do not take every power of two.
        return chance * min(self.longest, self.first * 2.0 ** min(failures - 1, 40))

    def patience(self, num_bytes: int, slow: int) -> float:
        """Seconds for a try to bring this many bytes, after `slow` tries that were too slow.

        Each doubles the part that grows with the size, up to eightfold: where all is slow, fewer
        requests at a time and more time for each bring something, and the same again brings nothing.
        """
        return self.silence + num_bytes / self.slowest * (1 << min(slow, 3))


class Budget:
    """A token bucket for the retries of one store's reads.

    A retry takes a token. Every success brings back a part of one, and so does time, so that a store
    of which nothing can be read is asked once a second and not never. In any span of time there are
    at most `capacity` retries, and one for each 1 / `per_success` successes and each 1 /
    `per_second` seconds in it.
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
        """A read has succeeded."""
        self._pass(now)
        self._tokens = min(self._capacity, self._tokens + self._per_success)

    def take(self, now: float) -> bool:
        """Takes a token, if there is one."""
        self._pass(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def wait(self, now: float) -> float:
        """Seconds until time alone brings a token."""
        self._pass(now)
        return max(0.0, (1.0 - self._tokens) / self._per_second)

    def _pass(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self._capacity, self._tokens + (now - self._at) * self._per_second)
            self._at = now


class Pace:
    """How many requests a store gets at a time, between 1 and `most`.

    Halved when the store throttles, or is too slow for the requests it has; one more for each
    `limit` successes. Refusals of requests that were under way when it was last halved say nothing
    new. `not_before` is when the store wants the next request.
    """

    LONGEST = 60.0  # seconds for which a store may send us away: it is asked again within a minute

    def __init__(self, most: int) -> None:
        self._most = most
        self._halved_at = float("-inf")
        self.limit = float(most)
        self.not_before = float("-inf")

    @property
    def allowed(self) -> int:
        """Requests at a time."""
        return int(self.limit)

    def succeeded(self) -> None:
        """A request has succeeded."""
        self.limit = min(float(self._most), self.limit + 1.0 / self.limit)

    def overloaded(self, now: float, began: float, after: float = 0.0) -> None:
        """A request that began at `began` was throttled or too slow; `after`: the store's Retry-After."""
        if began >= self._halved_at:
            self.limit = max(1.0, self.limit / 2)
            self._halved_at = now
        if after > 0:
            self.not_before = max(self.not_before, now + min(after, self.LONGEST))
