"""Measures the growth of a job's sets, and how often a job reads each record on average."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence

from cachecd_client.errors import CallerError
from cachecd_client.protocol import TrainerReport
from cachecd_client.report.datagram import Reports
from cachecd_client.report.summary import Report

log = logging.getLogger("cachecd")

# More mean reads of each record cause a warning that the cache grows too slowly. For language models, up to
# 4 passes over a text are about as good as new text, and more than 16 add almost nothing
# (Muennighoff et al., "Scaling Data-Constrained Language Models", 2023).
MANY_READS = 10

Interval = tuple[int, int, int]  # stream, first and last j


class Reads:
    """One job's epochs of one dataset, in this process."""

    def __init__(self, dataset: str, endpoint: str, rank: int = 0, job: str = "") -> None:
        """`endpoint`: the daemon's, for reports. `rank`: the rank of this process on its node. Only rank 0
        logs warnings."""
        self.dataset = dataset
        self.rank = rank
        self._job = job
        self.reports = Reports(endpoint)
        #: The time of the last lease, and the report of its epoch.
        self.latest: tuple[float, Callable[[], Report]] | None = None
        self._requested: float | None = None  # when the next set was requested
        self._bytes: int | None = None  # size of the last set
        self._generation = ""
        self._shards: list[Interval] = []  # the shards of all sets of the generation
        self._different = 0.0  # records in these shards
        self._reads = 0.0
        self._warned = False

    def requested(self) -> None:
        """Notes that the job requests its next set now."""
        self._requested = time.monotonic()

    def waits(self, epoch: int) -> None:
        """Reports to the daemon that the job waits for the set of this epoch."""
        self.reports.report(lambda: self._waiting(epoch))

    def _waiting(self, epoch: int) -> TrainerReport:
        seconds = 0.0 if self._requested is None else time.monotonic() - self._requested
        return TrainerReport(
            self.dataset, self._job, self.rank, os.getpid(), epoch, reader="", steps=0, records=0, bytes=0,
            waited_s=seconds, elsewhere_s=0.0, stages_s={"lease": seconds}, first=self._bytes is None,
        )  # fmt: skip

    def leased(
        self, generation: str, shards: Iterable[Sequence[int]], records: int, size: int
    ) -> tuple[float, float | None]:
        """Notes the next set: the intervals of its manifest, its records, its bytes.

        Returns the seconds since `requested`, and the size divided by the previous size (None for the first
        set).
        """
        seconds = 0.0 if self._requested is None else time.monotonic() - self._requested
        self._requested = None
        growth = size / self._bytes if self._bytes else None
        self._bytes = size
        if generation != self._generation:
            self._generation, self._shards = generation, []
        own = [(stream, first, last) for stream, first, last in shards]
        every = _united([*self._shards, *own])
        if each := _count(own):
            # A manifest has only the total number of records, so this is an estimate.
            self._different += (_count(every) - _count(self._shards)) * records / each
        self._shards = every
        return seconds, growth

    def reads_per_record(self, more: float = 0.0) -> float:
        """Returns the mean reads of a leased record: the records passed to `read`, and `more` records."""
        return (self._reads + more) / self._different if self._different else 0.0

    def read(self, records: float, coverage: float | None, pinned: bool) -> None:
        """Adds the records that an epoch read across all ranks. Warns once if records are read too often
        although the source has other records."""
        self._reads += records
        mean = self.reads_per_record()
        if self._warned or mean <= MANY_READS or pinned or (coverage or 0.0) >= 1.0:
            return
        self._warned = True
        if self.rank:
            return
        rest = ""
        if coverage is not None:
            rest = f", but {100 * (1 - coverage):.0f} % of the source has never been cached"
        log.warning(
            "%s: each record was read %.0f times so far%s: let the cache grow faster "
            "(grow.per_epoch, evict.refresh, cache.limit, sampler.bandwidth; `cachecd status` shows the "
            "limiting option), or plan fewer epochs or steps",
            self.dataset, mean, rest,
        )  # fmt: skip


class JobReads:
    """The reads of all jobs of a session."""

    def __init__(self, rank: int, endpoint: str) -> None:
        self._rank, self._endpoint = rank, endpoint
        self._jobs: dict[tuple[str, str], Reads] = {}

    def of(self, dataset: str, job: str) -> Reads:
        """Returns the reads of the job, which are new for a new job."""
        new = Reads(dataset, self._endpoint, self._rank, job)
        return self._jobs.setdefault((dataset, job), new)

    def report(self, dataset: str | None) -> Report:
        """Returns the report of the last leased epoch of this dataset, or of any dataset; CallerError if
        there is no such epoch."""
        chosen = [job for job in list(self._jobs.values()) if dataset in (None, job.dataset)]
        latest = max(
            (job.latest for job in chosen if job.latest), default=None, key=lambda at: at[0]
        )
        if latest is None:
            what = "anything" if dataset is None else repr(dataset)
            raise CallerError(f"this session has leased no epoch of {what} yet: there is no report")
        return latest[1]()


def _count(shards: Iterable[Interval]) -> int:
    return sum(last - first + 1 for _, first, last in shards)


def _united(shards: list[Interval]) -> list[Interval]:
    """Returns the union of the intervals, ascending and disjoint."""
    united: list[Interval] = []
    for stream, first, last in sorted(shards):
        before = united[-1] if united else None
        if before is not None and stream == before[0] and first <= before[2] + 1:
            united[-1] = stream, before[1], max(before[2], last)
        else:
            united.append((stream, first, last))
    return united
