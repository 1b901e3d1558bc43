"""Reasons to pause fetching: a failure, the egress limit, or that no job trains. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cachecd.quantities import approximate_size, format_duration

_SHORTEST, _LONGEST = 1.0, 60.0


@dataclass(slots=True)
class Pause:
    """The pause after a failure. It lasts one second, and doubles with each further failure, up to a
    minute. `reason`: the last failure. `refused`: a reason to pause that lasts until it is removed."""

    reason: str = ""
    until: float = 0.0
    refused: str = ""
    _length: float = 0.0

    @property
    def why(self) -> str:
        """Returns the last failure, or "" if the last try succeeded."""
        return self.refused or self.reason

    def stops(self, now: float) -> bool:
        """Whether the pause forbids a new try now."""
        return bool(self.refused) or now < self.until

    def begin(self, now: float, reason: str) -> None:
        """Begins a pause after a failure. Failures during a pause do not prolong it."""
        self.reason = reason
        if now >= self.until:
            self._length = min(max(_SHORTEST, 2 * self._length), _LONGEST)
            self.until = now + self._length

    def end(self) -> None:
        self.reason, self.until, self._length = "", 0.0, 0.0


@dataclass(slots=True)
class Restraint:
    """The configured limits of fetching. `offline`: nothing is fetched. `fetched`: total bytes fetched,
    across restarts. `wanted_at`: when a lease was last requested or ended."""

    egress_limit: int | None = None
    idle: float | None = None
    fetched: int = 0
    wanted_at: float | None = None
    offline: bool = False

    @property
    def spent(self) -> str:
        """Returns why nothing is fetched until a person acts, or ""."""
        if self.offline:
            return "the daemon runs offline: start it without --offline to fetch"
        if self.egress_limit is None or self.fetched < self.egress_limit:
            return ""
        limit = approximate_size(self.egress_limit)
        return (
            f"{approximate_size(self.fetched)} were fetched, sampler.egress_limit is {limit}: raise it "
            "to continue"
        )

    def idles(self, leased: bool, now: float) -> str:
        """Returns why nothing is fetched until a lease is requested, or ""."""
        self.wanted_at = now if self.wanted_at is None or leased else self.wanted_at
        if self.idle is None or now - self.wanted_at < self.idle:
            return ""
        return f"no job had a lease for {format_duration(self.idle)} (sampler.idle): the next lease resumes"
