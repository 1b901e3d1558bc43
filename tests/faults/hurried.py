"""What makes the crash tests' daemons quick: clocks that only make one wait (how often leases are probed,
how long a grant stands unheld) go faster."""

from __future__ import annotations

GRACE = 0.6  # seconds that a grant stands unheld


def prepare() -> None:
    from cachecd.daemon import loop
    from cachecd.policy import acquire, leases, policy

    acquire.GRACE = leases.GRACE = policy.GRACE = GRACE  # type: ignore[misc]
    loop._TICK, loop._PROBE, loop._MEASURE = 0.1, 0.02, 0.1
