"""What keeps the samplers from fetching though there is room: money, and that nobody trains. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cachecd.quantities import approximate_size, format_duration


@dataclass(slots=True)
class Restraint:
    """`egress_limit`: bytes that may be fetched in all, over restarts. `idle`: seconds without a lease
    after which nothing is fetched. None: no such bound."""

    egress_limit: int | None = None
    idle: float | None = None
    wanted_at: float | None = None  # when a lease was last asked for, or ended; at first, the start

    def change(self, bounds: Restraint) -> None:
        """Takes over other bounds."""
        self.egress_limit, self.idle = bounds.egress_limit, bounds.idle

    def wanted(self, now: float) -> None:
        """Somebody trains."""
        self.wanted_at = now

    def spent(self, fetched: int) -> str:
        """Why nothing will be fetched any more, "" if something may; `fetched` bytes have been."""
        if self.egress_limit is None or fetched < self.egress_limit:
            return ""
        return (
            f"{approximate_size(fetched)} have been fetched of sampler.egress_limit "
            f"({approximate_size(self.egress_limit)}): raise it to go on"
        )

    def resting(self, leased: bool, now: float) -> str:
        """Why nothing is fetched now, "" if something may be; `leased`: somebody has a lease."""
        if self.wanted_at is None:
            self.wanted_at = now
        if self.idle is None or leased or now - self.wanted_at < self.idle:
            return ""
        return (
            f"nobody has had a lease for {format_duration(self.idle)} (sampler.idle): the next one "
            "resumes it"
        )
