"""What a process waited in the last minute, from its reports. Pure."""

from __future__ import annotations

from collections import deque

from cachecd_client.protocol import TrainerReport

MINUTE = 60.0
_EVERY = 5.0  # seconds between two samples that are kept
_EPOCHS = 4  # whose last figures are kept


class LastMinute:
    """Adds up the reports of one process. A report that is lost, or an epoch that begins, loses nothing
    but the seconds between the last report of the epoch and the epoch's end.

    The figures of an epoch are compared only with the earlier figures of the same epoch, because the last
    report of an epoch may follow the first report of the next epoch.
    """

    def __init__(self) -> None:
        # (time, seconds waited by stage): the last sample before the minute, and the samples within.
        self._samples: deque[tuple[float, dict[str, float]]] = deque()
        # By epoch: the seconds waited by stage of its last report. The epoch that reported last is last.
        self._before: dict[int, dict[str, float]] = {}

    def begin_late(self, report: TrainerReport, now: float) -> None:
        """Takes the first report as a baseline, if its epoch began more than a minute ago: nobody knows
        when the process waited. Call it before `add`, unless the process reports to itself."""
        if report.waited_s + report.elsewhere_s > MINUTE:
            self._samples.append((now, {}))
            self._before[report.epoch] = {} if report.first else report.stages_s

    def add(self, report: TrainerReport, now: float) -> None:
        """Adds a report. Waiting for the first set does not count."""
        samples = self._samples
        if not samples:
            samples.append((now - report.waited_s - report.elsewhere_s, {}))
        before = self._before.pop(report.epoch, {})
        stages = {} if report.first else report.stages_s
        if sum(stages.values()) < sum(before.values()):
            before = {}  # another run: the figures count from 0 again
        total = dict(samples[-1][1])
        for stage, seconds in stages.items():
            total[stage] = total.get(stage, 0.0) + max(0.0, seconds - before.get(stage, 0.0))
        self._before[report.epoch] = stages
        if len(self._before) > _EPOCHS:
            del self._before[next(iter(self._before))]
        if len(samples) > 1 and samples[-1][0] - samples[-2][0] < _EVERY:
            samples.pop()
        samples.append((now, total))
        self._forget(now - MINUTE)

    def _forget(self, since: float) -> None:
        """Drops all samples before `since` but the last of them. Keeps at least two."""
        while len(self._samples) > 2 and self._samples[1][0] <= since:
            self._samples.popleft()

    def stages(self, now: float) -> dict[str, float]:
        """Returns the seconds waited in the last minute, by stage. Between two samples, waiting is taken as
        even."""
        if not self._samples:
            return {}
        since = now - MINUTE
        self._forget(since)
        (first, earlier), (second, later) = self._samples[0], self._samples[1]
        part = min(1.0, max(0.0, since - first) / max(second - first, 1e-9))
        last = self._samples[-1][1]
        begin = {s: earlier.get(s, 0.0) * (1 - part) + later[s] * part for s in later}
        return {stage: seconds - begin.get(stage, 0.0) for stage, seconds in last.items()}

    def share(self, now: float) -> float:
        """Returns the share of the last minute, 0..1, in which the process waited; of its life if that is
        shorter."""
        if not self._samples:
            return 0.0
        whole = min(MINUTE, now - self._samples[0][0])
        return min(1.0, sum(self.stages(now).values()) / whole) if whole > 0 else 0.0
