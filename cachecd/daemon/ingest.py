"""What the daemon knows of fetching since its start: bytes and their rate, seconds by stage, pauses."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import replace

from cachecd.daemon.pauses import Pauses
from cachecd.daemon.timeline import Timeline
from cachecd.model import StageSeconds, in_order
from cachecd.policy.policy import Policy
from cachecd.sampler.messages import Effort

_RATED = 10  # measurements, one a second, over which the rate of fetching is computed
_MOST_STAGES = 100  # of a dataset: its steps have names that a configuration bounds


class Ingest:
    """Adds up what workers report. `workers`: the configured number of processes. `timeline` gets their
    spans. `fetched`: bytes fetched in all runs."""

    def __init__(self, timeline: Timeline, workers: int = 1) -> None:
        self.workers = workers
        self.fetched = 0
        self.pauses = Pauses()
        self._timeline = timeline
        self._arrived = Counter[str]()  # bytes fetched for each dataset since the start
        self._earlier = deque([(time.monotonic(), self._arrived.copy())], _RATED)
        self._stages: dict[str, dict[str, StageSeconds]] = {}
        self._busy: set[str] = set()  # datasets with work since the last tick

    @property
    def fetched_since_start(self) -> int:
        return self._arrived.total()

    def count(self, dataset: str, fetched: int) -> None:
        """Counts fetched bytes."""
        self.fetched += fetched
        self._arrived[dataset] += fetched
        self._busy.add(dataset)

    def add(self, dataset: str, effort: Effort) -> None:
        """Adds the work of a process on a dataset."""
        self._busy.add(dataset)
        for stage, seconds in effort.stages.items():
            self.note(dataset, stage, seconds)
        self.pauses.waited(effort.waits, self.workers)
        self._timeline.add(f"worker {effort.pid}", effort.spans)

    def note(self, dataset: str, stage: str, seconds: StageSeconds) -> None:
        """Adds work on one stage."""
        stages = self._stages.setdefault(dataset, {})
        if stage in stages or len(stages) < _MOST_STAGES:
            stages[stage] = stages.get(stage, StageSeconds()).plus(seconds)

    def listed(self, dataset: str, cpu_s: float, began: float, units: int) -> None:
        """Adds a page of a listing. Any thread may call it."""
        self.note(dataset, "list", StageSeconds(cpu_s, time.monotonic() - began, units))
        self._timeline.note(f"list {dataset}", began)

    def stages(self, dataset: str) -> dict[str, StageSeconds]:
        """Returns the work on a dataset since the start, by stage."""
        return {
            stage: replace(each, cpu_s=round(each.cpu_s, 6), wall_s=round(each.wall_s, 6))
            for stage, each in in_order(self._stages.get(dataset, {})).items()
        }

    def rate(self, dataset: str) -> float:
        """Returns the current rate of fetching for a dataset, in bytes per second."""
        then, arrived = self._earlier[0]
        return (self._arrived[dataset] - arrived[dataset]) / (time.monotonic() - then)

    def measure(self) -> None:
        """Notes the bytes that have arrived, for `rate`. Call it once a second."""
        self._earlier.append((time.monotonic(), self._arrived.copy()))

    def tick(self, policy: Policy, now: float) -> None:
        """Adds the time since the last tick to the reasons why nothing is fetched."""
        self.pauses.tick(policy, self._busy, now)
        self._busy.clear()
