"""What an epoch tells about itself, and what to do where it waits too much. Plain values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

# A share of the time above which it is worth a person's while to look for the reason, and seconds of
# waiting for batches, and for a set, below which it is not: the first set always takes a while.
_MUCH = 0.1
_SECONDS, _SECONDS_LEASING = 1.0, 10.0


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """What of an epoch's report is of one of several datasets; the figures are those of EpochReport."""

    dataset: str
    weight: float
    """Its share of the epoch's records, 0..1."""
    set_records: int
    set_bytes: int
    growth: float | None
    coverage: float | None
    reads_per_record: float


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What one epoch has given this process so far, summed over all passes of all its loaders.

    Passes that run count up to the batch delivered last. What other processes read does not count, a
    DataLoader's workers among them; nor what TensorFlow reads by `tf_dataset()`.
    """

    dataset: str
    job: str
    epoch: int
    steps: int
    """Batches delivered."""
    records: int
    """Records in them, the padding of last batches left out."""
    bytes: int
    """Bytes of these records as they are stored."""
    seconds_waited: float
    """The training loop stood still for data: no batch was ready, or a pass's files were opened."""
    seconds_elsewhere: float
    """The rest of the time between the beginnings and the ends of passes."""
    seconds_leasing: float
    """From asking for the epoch's set until it was held."""
    queue: float | None
    """How full the queue of batches made ahead was, 0..1, in the mean over the steps of our loaders; None
    without any."""
    set_records: int
    """Records in the leased set, over all ranks."""
    set_bytes: int
    growth: float | None
    """The set's bytes over those of the job's set before it; None for the first of this session."""
    coverage: float | None
    """Share of the source that had come into the cache at least once, 0..1, when the set was granted;
    None if the daemon did not say."""
    reads_per_record: float
    """Of the whole run so far: records read, over all ranks here, for each different record leased."""
    corrupt_records: int
    """Different records that were found corrupt."""
    lent: str
    """Who else was given the set to read, and is not counted here: a dataset's workers, or TensorFlow;
    empty if nobody was."""
    advice: str
    """What to do about the waiting; empty if it is not worth while."""
    mixed: tuple[DatasetReport, ...] = ()
    """Of each dataset, where several are mixed. Then the sets' sizes above are sums, `growth` is that of
    the sum, and `coverage` and `reads_per_record` are means by weight."""

    @property
    def wait_share(self) -> float:
        """`seconds_waited` over the time of all passes, 0..1; 0 if there was none."""
        return _share(self.seconds_waited, self.seconds_waited + self.seconds_elsewhere)

    def as_dict(self) -> dict[str, Any]:
        """All of it, `wait_share` too, in values that JSON knows."""
        values = dataclasses.asdict(self)
        return {**values, "mixed": list(values["mixed"]), "wait_share": self.wait_share}

    def __str__(self) -> str:
        """One line: ``epoch 3 of train: 1,200 steps, waited 3 % on data; the cache grew 1.4x``."""
        if self.steps:
            read = f"{_count(self.steps, 'step')}, waited {self.wait_share:.0%} on data"
            read = read.replace("%", " %")
        elif self.lent:
            read = f"read by {self.lent}, which nobody times here"
        else:
            read = "nothing read by its loaders in this process"
        if self.seconds_leasing >= _SECONDS:
            read += f" and {self.seconds_leasing:.0f} s for the set"
        parts = [f"epoch {self.epoch} of {self.dataset}: {read}", self._size()]
        if self.corrupt_records:
            parts.append(f"{_count(self.corrupt_records, 'record')} corrupt")
        if self.advice:
            parts.append(self.advice)
        return "; ".join(parts)

    def _size(self) -> str:
        if self.growth is None:
            return f"the set has {_count(self.set_records, 'record')}"
        times = f"{self.growth:.2g}x" if self.growth < 10 else f"{self.growth:.0f}x"
        if times == "1x":
            return "the cache is as large as before"
        return f"the cache {'grew' if self.growth > 1 else 'shrank to'} {times}"


@dataclass(frozen=True, slots=True)
class Waited:
    """The pass that waited most, by which advice is given."""

    seconds: float = 0.0
    steps: int = 0
    bytes: int = 0
    elapsed: float = 0.0
    threads: int = 0  # as asked for; 0: as many as are of use
    prefetch_bytes: int = 0


def advice(report: EpochReport, most: Waited, processors: int) -> str:
    """The remedy where the waiting is worth one, else ""."""
    whole = report.seconds_waited + report.seconds_elsewhere
    if report.seconds_waited >= _SECONDS and report.wait_share > _MUCH and most.steps:
        return _faster_reading(most, processors)
    if (
        report.seconds_leasing >= _SECONDS_LEASING
        and _share(report.seconds_leasing, whole + report.seconds_leasing) > _MUCH
    ):
        return (
            "the set came late: the store, its link or the samplers are the limit, which `cachecd status` "
            "tells apart; a smaller grow.first, and no grow.wait, let epochs begin sooner"
        )
    return ""


def _faster_reading(most: Waited, processors: int) -> str:
    rate = f"{most.bytes / most.elapsed / 1e6:.0f} MB/s"
    mean = most.bytes // most.steps
    if 2 * mean > most.prefetch_bytes:
        return (
            f"prefetch_bytes={most.prefetch_bytes} holds fewer than two batches of {mean} bytes: "
            f"raise it to {4 * mean} or more"
        )
    if 0 < most.threads < processors:
        return f"threads={most.threads} on {processors} processors: raise it, or leave it out"
    return (
        f"reading gave {rate}, which disk and processors limit: "
        "ask for fewer `features`, store them smaller (a transform), or put cache.dir on a faster disk"
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
