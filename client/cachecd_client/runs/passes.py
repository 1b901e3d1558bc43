"""Adds up the figures of all passes over an epoch in this process: records, bytes, waits. Reports them to
the daemon, and logs them.

Nothing here runs for each record or batch: the core counts during a pass, and the loader has the figures of
its pass.
"""

from __future__ import annotations

import logging
import operator
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from cachecd_client import resources
from cachecd_client.lease.leased_set import LeasedSet
from cachecd_client.loader.figures import Figures, Sums
from cachecd_client.loader.reading import Lent
from cachecd_client.loader.sweep import Part
from cachecd_client.protocol import Span, TrainerReport
from cachecd_client.report.summary import Report, Waited, advice, line
from cachecd_client.runs.run import Run

if TYPE_CHECKING:
    from cachecd_client.loader.loader import Loader

log = logging.getLogger("cachecd")

_IN_A_WORKER = "a DataLoader worker reads ahead: whether the training loop waits for it is not seen"
_IN_TENSORFLOW = (
    "TensorFlow reads the files in threads of its own: steps, bytes and waits within a set are not "
    "seen"
)


class _Read(NamedTuple):
    """The records that one pass read across all ranks, in steps of `step` records. `part`: None if the pass
    reads the whole set."""

    records: int
    step: int
    part: Part | None


class Passes:
    """All passes over one epoch, of one dataset or of several, in this process."""

    def __init__(
        self, name: str, sets: Sequence[LeasedSet], weights: Sequence[float], number: int, length: int,
        run: Run | None,
    ) -> None:  # fmt: skip
        """`name`: the dataset or the mixture; `weights`: the share of each set in the records; `number`:
        the number of the epoch in `run`; `length`: records of one pass, across all ranks."""
        self._name, self._sets, self._weights = name, sets, weights
        self.number, self.length, self._run = number, length, run
        self.before = 0 if run is None else run.read  # records of earlier epochs, across all ranks
        self.earlier = 0  # records of this epoch that an earlier process read
        self._done = 0.0  # the delivered share of the latest pass
        self._latest: weakref.ref[Loader] | None = None  # the loader whose pass began last
        self._most: _Read | None = None  # the longest pass that has ended
        self._loaders: weakref.WeakSet[Loader] = weakref.WeakSet()
        self._lent: list[Lent] = []
        self._has_reader = False  # a loader was made, or another reader was given batches
        self._has_begun = False  # a pass has begun
        self._ended = Figures()  # the sum of the passes that have ended
        self._waited = Waited()  # the ended pass that waited most
        self._corrupt: set[tuple[str, int]] = set()
        self._process = os.getpid()
        self._memory = 0  # bytes that this process may use; 0: not looked up, which takes 0.6 ms
        self._is_logged = False
        leased = [
            one.reads.leased(m.generation, m.intervals, m.num_records, m.num_bytes)
            for one in sets
            if (m := one.manifest)
        ]
        self._leasing = max(seconds for seconds, _ in leased)  # seconds since the first request
        self._growth = [growth for _, growth in leased]
        for one in sets:  # last, because another thread may call `report` at once
            one.reads.latest = (time.monotonic(), self.report)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy counts its own passes."""
        made = self._name, self._sets, self._weights, self.number, self.length, self._run
        return (
            Passes,
            made,
            {"before": self.before, "earlier": self.earlier, "_done": self._done},
        )

    # --- the passes

    def add(self, loader: Loader) -> None:
        self._loaders.add(loader)
        self._has_reader = True

    def began(self, loader: Loader) -> None:
        """Notes that a pass of the loader has begun."""
        self._in_this_process()
        self._has_begun = True
        self._latest = weakref.ref(loader)
        self._lent = [
            lent for lent in self._lent if lent.loader is None or lent.loader() is not loader
        ]

    def ended(self, loader: Loader, figures: Figures) -> None:
        """Notes that the loader's pass has ended with these figures."""
        self._in_this_process()
        self._done = loader.position / len(loader)
        self._most = _most([self._most, _read(loader)])
        self._ended = self._ended.plus(figures)
        self._waited = _waited([self._waited], [(loader, figures)])
        self.pulse(loader)

    def pulse(self, loader: Loader) -> None:
        """Reports to the daemon what this process has read, at most once a second. Never raises."""
        reader, blind = loader.reader, ""
        if _is_worker():
            reader, blind = f"{reader} worker", _IN_A_WORKER
        self._sets[0].reads.reports.report(
            lambda: self._trainer_report(reader, blind, loader.queue, loader.take_spans())
        )

    def lend(self, lent: Lent) -> None:
        """Notes that another reader gets these batches, unless their loader begins a pass here."""
        self._lent.append(lent)
        self._has_reader = True
        if lent.to == "TensorFlow" and lent.steps:
            reports = self._sets[0].reads.reports
            reports.report(lambda: self._trainer_report("tf_dataset", _IN_TENSORFLOW))

    def close(self) -> None:
        """Ends all passes; no pass begins afterwards."""
        for loader in list(self._loaders):
            loader.close()

    def _running(self) -> list[tuple[Loader, Figures]]:
        loaders = list(self._loaders)
        return [(one, figures) for one in loaders if (figures := one.figures) is not None]

    def _in_this_process(self) -> None:
        """In a forked child, starts from zero."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._ended, self._waited = Figures(rows=self._ended.rows), Waited()
            self._is_logged = True  # by the parent, whose epoch continues

    # --- the run

    @property
    def progress(self) -> float:
        """The progress of the run, 0..1; of the latest pass if there is no run."""
        latest = None if self._latest is None else self._latest()
        if latest is not None:
            self._done = latest.position / len(latest)
        if self._run is None:
            return self._done
        return self._run.progress(self.number, self._done, self.before + self.rows)

    @property
    def rows(self) -> int:
        """The rows that this epoch has read across all ranks, including padding; in a forked child, also
        the rows of passes that ended in the parent."""
        self._in_this_process()
        running = sum(figures.rows for _, figures in self._running())
        return self.earlier + self._ended.rows + running

    def resume(self, read: int, share: float) -> None:
        """Notes that an earlier process read `read` records of this epoch, a `share` of its pass."""
        self.earlier, self._done = read, share

    def restart(self) -> None:
        """Begins with the first batch. Records of an earlier process count as read before this epoch."""
        self.before += self.earlier
        if self._run is not None:
            self._run.read += self.earlier
        self.earlier, self._done = 0, 0.0

    def delivered(self) -> int | None:
        """Returns how many records of the set were delivered across all ranks, or given to other readers;
        None if there was no reader."""
        if not self._has_reader:
            return None
        here = self._ended.delivered + sum(figures.delivered for _, figures in self._running())
        return here + sum(lent.delivered(self.length) for lent in self._lent)

    def report_to_run(self) -> None:
        """Reports to the run how many records loaders here have read, or other readers if they were given
        more. If there was no reader, reports the whole set once."""
        if self._run is None:
            return
        # If several tf.data or torch datasets were made, probably only the last is used.
        lent = [_Read(one.steps * one.step, one.step, one.part) for one in self._lent[-1:]]
        # The longest pass decides how the run continues, because a look at a few records is short.
        most = _most([self._most, *(_read(loader) for loader, _ in self._running()), *lent])
        if most is None:
            self._run.ended(self.length, 1, None)
            return
        read = max([self.rows, *(one.records for one in lent)])
        self._run.ended(read, most.step, most.part)

    # --- the reports

    def _trainer_report(
        self, reader: str, blind: str, queue: float | None = None, spans: Sequence[Span] = ()
    ) -> TrainerReport:
        self._in_this_process()
        self._memory = self._memory or resources.memory()
        sums, reads = self._sums(), self._sets[0].reads
        # The job waits for its first set anyway, whatever the speed.
        leasing = 0.0 if None in self._growth else self._leasing
        return TrainerReport(
            self._name, self._sets[0].manifest.job, reads.rank, os.getpid(), self.number, reader,
            sums.steps, sums.records, sums.bytes, sums.waited + leasing,
            max(0.0, sums.elapsed - sums.waited), Sums(sums.stages) + {"lease": leasing}, queue,
            memory=self._memory, random_bytes=self._random_bytes(),
            reads_per_record=reads.reads_per_record(0 if self._is_logged else sums.reads),
            gil_s=_seconds_for_gil(), blind=blind,
            spans=[(f"next: {stage}", begin, seconds) for stage, begin, seconds in spans],
        )  # fmt: skip

    def _random_bytes(self) -> int:
        """Returns the bytes that are read at random at a time, of all sets."""
        manifests = [one.manifest for one in self._sets]
        return sum(
            min(m.num_bytes if m.window is None else m.window, m.num_bytes) for m in manifests
        )

    def _sums(self) -> Figures:
        """Returns the figures of all passes until now."""
        sums = self._ended
        for _, figures in self._running():
            sums = sums.plus(figures)
        return sums

    def corrupt(self, path: str, offset: int) -> None:
        self._corrupt.add((path, offset))

    def report(self) -> Report:
        """Returns all figures until now."""
        self._in_this_process()
        sums, running = self._sums(), self._running()
        whole = max(sums.waited, sums.elapsed)
        sets = self._of_sets(sums)
        sources = [one.manifest.source_records for one in self._sets]
        lent = self._lent[-1] if self._lent else None
        lengths = [one.schema.tokens or 0 for one in self._sets]
        tokens = round(sums.records * sum(map(operator.mul, lengths, self._weights)))
        report = {
            "dataset": self._name,
            "job": self._sets[0].manifest.job,
            "epoch": self.number,
            "steps": sums.steps,
            "records": sums.records,
            "bytes": sums.bytes,
            "tokens": tokens,
            "tokens_per_second": tokens / whole if tokens and whole > 0 else 0.0,
            "padding": sums.padding / sums.masked if sums.masked else None,
            "dropped_records": sums.dropped + (lent.dropped if lent else 0),
            "seconds_waited": sums.waited,
            "seconds_elsewhere": whole - sums.waited,
            "wait_share": sums.waited / whole if whole > 0 else 0.0,
            "seconds_leasing": self._leasing,
            "stages_s": {stage: seconds for stage, seconds in sums.stages.items() if seconds},
            "queue": sums.queue / sums.steps if sums.steps else None,
            "queue_p10": sums.queue_percentile(0.1),
            "queue_p50": sums.queue_percentile(0.5),
            "set_records": sum(one["set_records"] for one in sets),
            "set_bytes": sum(one["set_bytes"] for one in sets),
            "source_records": sum(sources) if all(sources) else 0,
            "growth": _growth(sets),
            "repeated": self._sets[0].is_repeated,
            "note": next((one.note for one in self._sets if one.note), ""),
            "coverage": _mean(sets, "coverage"),
            "reads_per_record": _mean(sets, "reads_per_record") or 0.0,
            "corrupt_records": len(self._corrupt),
            "skipped_records": sum(one.manifest.num_skipped for one in self._sets),
            "lent": lent.to if lent else "",
            "mixed": sets if len(sets) > 1 else [],
        }
        most = _waited([self._waited], running)
        return {**report, "advice": advice(report, most, resources.processors())}

    def log_report(self) -> None:
        """Logs the figures of the epoch once, after its passes have ended."""
        self._in_this_process()
        if self._is_logged:
            return
        self._is_logged = True
        # If there was no reader here, the trainer's own reader probably reads `files` once.
        reads = self._ended.reads if self._has_begun or self._lent else self.length
        reads += sum(lent.reads(self.length) for lent in self._lent[-1:])
        for one, weight in zip(self._sets, self._weights, strict=True):
            one.reads.read(reads * weight, one.coverage, one.manifest.pinned)
        # Other ranks wait about as long, and a launcher shows the log lines of all ranks.
        rank = self._sets[0].reads.rank
        log.log(logging.DEBUG if rank else logging.INFO, "%s", line(self.report()))

    def _of_sets(self, sums: Figures) -> list[Report]:
        more = 0 if self._is_logged else sums.reads
        return [
            {
                "dataset": one.manifest.dataset,
                "weight": weight,
                "set_records": one.manifest.num_records,
                "set_bytes": one.manifest.num_bytes,
                "growth": growth,
                "coverage": one.coverage,
                "reads_per_record": one.reads.reads_per_record(more * weight),
            }
            for one, weight, growth in zip(self._sets, self._weights, self._growth, strict=True)
        ]


def _is_worker() -> bool:
    """Whether this process is a worker of a torch DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


# How long threads of this process waited for the GIL, at the latest reports.
_gil_waits: deque[float] = deque(maxlen=5)


def _seconds_for_gil() -> float:
    """Returns how long a thread waits for the GIL after it has released it: the median of five reports; 0
    before the third. Once is chance: a thread may get a GIL that others hog, or wait for a processor."""
    began = time.perf_counter()
    time.sleep(0)
    _gil_waits.append(time.perf_counter() - began)
    return median(_gil_waits) if len(_gil_waits) > 2 else 0.0


def _read(loader: Loader) -> _Read:
    """Returns the records that the loader's pass has delivered, also in an earlier process."""
    step = loader.batch_size * loader.world
    return _Read(loader.position * step, step, loader.part)


def _most(passes: Iterable[_Read | None]) -> _Read | None:
    return max((one for one in passes if one), key=lambda one: one.records, default=None)


def _waited(before: Sequence[Waited], passes: Iterable[tuple[Loader, Figures]]) -> Waited:
    these = [
        Waited(
            figures.waited, figures.steps, figures.bytes, figures.elapsed, loader.threads,
            loader.prefetch_bytes, loader.picture_bytes,
        )
        for loader, figures in passes
    ]  # fmt: skip
    return max([*before, *these], key=lambda one: one.seconds)


def _growth(sets: Sequence[Report]) -> float | None:
    """Returns the common growth of all sets that had a previous set; None if there are none."""
    if len(sets) == 1:
        growth: float | None = sets[0]["growth"]
        return growth
    grown = [one for one in sets if one["growth"]]
    before = sum(one["set_bytes"] / one["growth"] for one in grown)
    return sum(one["set_bytes"] for one in grown) / before if before else None


def _mean(sets: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Returns the weighted mean of a figure, for the sets that have the figure."""
    known = [one for one in sets if one[name] is not None]
    whole = sum(one["weight"] for one in known)
    return sum(one["weight"] * one[name] for one in known) / whole if whole else None
