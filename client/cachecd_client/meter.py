"""A run's figures as they change: what curves beside the loss are made of."""

from __future__ import annotations

from collections.abc import Callable

from cachecd_client.report import EpochReport


class Meter:
    """Rates and shares since the last reading, from the reports of a run's epochs one after another."""

    def __init__(self, report: Callable[[], EpochReport], prefix: str = "") -> None:
        """report: `epoch.report`, or over several epochs `lambda: cache.report("train")`.
        prefix: of the names."""
        self._report = report
        self._prefix = prefix
        self._before: EpochReport | None = None

    def read(self) -> dict[str, float]:
        """What has changed since the last reading, and what holds now, by name (docs/telemetry.md).

        The waiting for an epoch's set counts in its first reading. A figure that nothing is known of is
        left out; so are what an epoch gave between the last reading in it and the first in the next.
        """
        now, before = self._report(), self._before
        self._before = now
        if before is not None and not _goes_on(before, now):
            before = None
        steps, records, size = now.steps, now.records, now.bytes
        waited, whole = now.seconds_waited, now.seconds_waited + now.seconds_elsewhere
        filled = _filled(now)
        if before is None:
            waited, whole = waited + now.seconds_leasing, whole + now.seconds_leasing
        else:
            steps, records, size = (
                steps - before.steps,
                records - before.records,
                size - before.bytes,
            )
            waited -= before.seconds_waited
            whole -= before.seconds_waited + before.seconds_elsewhere
            filled -= _filled(before)
        found: dict[str, float] = {
            "set_records": now.set_records,
            "set_bytes": now.set_bytes,
            "reads_per_record": now.reads_per_record,
        }
        if steps and now.queue is not None:
            found["queue"] = filled / steps
        if steps and whole > 0:
            found["wait_share"] = max(0.0, waited) / whole
            found["records_per_second"] = records / whole
            found["bytes_per_second"] = size / whole
        if now.coverage is not None:
            found["coverage"] = now.coverage
        return {self._prefix + name: value for name, value in found.items()}


def _goes_on(before: EpochReport, now: EpochReport) -> bool:
    """Whether the later is of the same epoch, and of the same lease of it."""
    same = (before.dataset, before.job, before.epoch) == (now.dataset, now.job, now.epoch)
    return same and before.steps <= now.steps


def _filled(report: EpochReport) -> float:
    return 0.0 if report.queue is None else report.queue * report.steps
