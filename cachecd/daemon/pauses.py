"""Why nothing is fetched now, as one word, and the seconds of each reason since the start."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cachecd.daemon.status import ingest_stops
from cachecd.policy.dataset import Dataset
from cachecd.policy.policy import Policy

#: Workers report the first three: they wait for bytes. If datasets pause for several reasons, the first
#: counts. `room` is last, because it is the normal state of a dataset.
REASONS = ("link", "throttled", "bandwidth", "disk", "listing", "egress", "idle", "room")
BUSY = "busy"


def pause_of(policy: Policy, dataset: Dataset, now: float) -> str:
    """Returns why no worker works on a dataset: a word of REASONS. BUSY if a worker makes one of its
    shards. "" if it is whole, or if only a person can continue it (`--offline`, records that contradict
    the schema)."""
    gen, restraint = dataset.generation, policy.restraint
    if gen.is_whole or restraint.offline or gen.contradicted:
        return ""
    if policy.pauses(now):
        return "egress" if restraint.spent else "idle"
    if policy.disk.why or ingest_stops(policy):
        return "disk"
    if dataset.waits_for:
        return "listing"
    if dataset.source.why:
        return "link"
    if gen.reserved:
        return "listing" if gen.blocks.is_growing else BUSY
    return "room"


class Pauses:
    """The seconds of each reason. If several workers wait for bytes, each counts for its share."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(REASONS, 0.0)
        self._then: float | None = None

    def waited(self, waits: Mapping[str, float], workers: int) -> None:
        """Adds the seconds in which one of the `workers` waited for bytes."""
        for reason, seconds in waits.items():
            if reason in self.seconds:
                self.seconds[reason] += max(0.0, seconds) / workers

    def tick(self, policy: Policy, busy: Collection[str], now: float) -> None:
        """Adds the time since the last tick to one reason, or to none if any dataset is busy. `busy`: the
        datasets on which workers reported work since the last tick."""
        passed, self._then = now - (now if self._then is None else self._then), now
        reasons = {pause_of(policy, each, now) for each in policy.datasets.values()}
        reason = next((each for each in REASONS if each in reasons), "")
        if reason and not busy and BUSY not in reasons:
            self.seconds[reason] += passed
