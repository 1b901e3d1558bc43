"""The figures of an epoch: sums over the passes of its loaders, while they run and afterwards."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cachecd_client import resources
from cachecd_client.protocol import Manifest
from cachecd_client.report.reads import Reads
from cachecd_client.report.summary import Report, Waited, advice, line

log = logging.getLogger("cachecd")


class Division(Protocol):
    """How a pass is divided into batches."""

    def begin(self, step: int, rank: int) -> int:
        """The records of `rank` before this step."""


class Loader(Protocol):
    """The figures of a loader: of its current pass, or sums over its passes."""

    batch_size: int
    rank: int
    world: int
    threads: int
    prefetch_bytes: int
    picture_bytes: int

    def __len__(self) -> int: ...
    @property
    def division(self) -> Division: ...
    @property
    def position(self) -> int: ...
    @property
    def seconds_waited(self) -> float: ...
    @property
    def seconds_idle(self) -> float: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def queue_filled(self) -> float: ...


@dataclass(slots=True)
class _Sums:
    """Sums over some passes."""

    steps: int = 0
    records: int = 0
    reads: int = 0  # records, over all ranks
    rows: int = 0  # the same with padding
    bytes: int = 0
    waited: float = 0.0
    elapsed: float = 0.0
    queue: float = 0.0  # summed over the steps

    def add(self, other: _Sums) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class _Began:
    """The figures of a loader when its pass began; all but the position are sums over its passes."""

    asked: float
    opening: float
    position: int
    waited: float
    bytes: int
    queue: float


class Lent(NamedTuple):
    """Batches that another reader takes, uncounted; `batch_size` records for each rank."""

    to: str
    steps: int
    batch_size: int
    world: int

    @property
    def step(self) -> int:
        """Records of a step, over all ranks."""
        return self.batch_size * self.world

    def reads(self, length: int) -> int:
        """Records over all ranks, of a set of `length` records; the last step of a pass may be padded."""
        reads = self.steps * self.step
        return length if 0 <= reads - length < self.step else reads


class Counted(NamedTuple):
    """A leased set of an epoch: the reads of the job, the coverage from the daemon, the share of the
    records (`weight`), and whether it repeats the set before."""

    manifest: Manifest
    reads: Reads
    coverage: float | None
    weight: float
    is_repeated: bool


class Telemetry:
    """The figures of one epoch in one process, of one dataset or of several.

    Nothing here runs for each record or batch: the core counts, and is read when a pass ends or a report
    is made.
    """

    def __init__(self, name: str, sets: Sequence[Counted], number: int, length: int) -> None:
        """`name`: of the dataset or the mixture; `length`: records of one pass, over all ranks."""
        self._name = name
        self._sets = sets
        self._number = number
        self._length = length
        leased = [
            one.reads.leased(
                one.manifest.generation,
                one.manifest.intervals,
                one.manifest.num_records,
                one.manifest.num_bytes,
            )
            for one in sets
        ]
        self._leasing = max(seconds for seconds, _ in leased)  # since the first request
        self._growth = [growth for _, growth in leased]
        self._process = os.getpid()
        self._asked = 0.0
        self._ended = _Sums()
        self._most = Waited()
        self._running: weakref.WeakKeyDictionary[Loader, _Began] = weakref.WeakKeyDictionary()
        self._corrupt: set[tuple[str, int]] = set()
        self._begun = False  # a pass
        self._lent: list[Lent] = []
        self._over = False
        for one in sets:  # last, because another thread may call `report` at once
            one.reads.latest = (time.monotonic(), self.report)

    def opens(self) -> None:
        """A pass is about to open its files."""
        self._asked = time.monotonic()

    def began(self, loader: Loader) -> None:
        """The pass has opened its files."""
        self._here()
        self._begun = True
        self._running[loader] = _Began(
            self._asked,
            time.monotonic() - self._asked,
            loader.position,
            loader.seconds_waited,
            loader.bytes_read,
            loader.queue_filled,
        )

    def ended(self, loader: Loader) -> None:
        """The loader's last pass is over."""
        began = self._running.pop(loader, None)
        if began is None:
            return
        pass_sums = self._of(loader, began)
        self._ended.add(pass_sums)
        if pass_sums.waited > self._most.seconds:
            self._most = _most(loader, pass_sums)

    def is_running(self, loader: Loader) -> bool:
        """Whether a pass of the loader has begun and not ended."""
        return loader in self._running

    def lend(self, lent: Lent) -> None:
        """Another reader gets these batches."""
        self._lent.append(lent)

    def take_back(self, lent: Lent) -> None:
        """A loader of this process reads these batches."""
        self._lent.remove(lent)

    @property
    def rows(self) -> int:
        """Rows delivered over all ranks until now, padding included; in a forked child, also the rows of
        passes that had ended in the parent."""
        self._here()
        running = list(self._running.items())
        return self._ended.rows + sum(_rows(loader, began) for loader, began in running)

    def corrupt(self, path: str, offset: int) -> None:
        """Notes a corrupt record."""
        self._corrupt.add((path, offset))

    def report(self) -> Report:
        """All figures until now."""
        self._here()
        sums, most = _Sums(), self._most
        sums.add(self._ended)
        for loader, began in list(self._running.items()):
            pass_sums = self._of(loader, began)
            sums.add(pass_sums)
            if pass_sums.waited > most.seconds:
                most = _most(loader, pass_sums)
        whole = max(sums.waited, sums.elapsed)
        sets = self._of_sets(sums)
        report = {
            "dataset": self._name,
            "job": self._sets[0].manifest.job,
            "epoch": self._number,
            "steps": sums.steps,
            "records": sums.records,
            "bytes": sums.bytes,
            "seconds_waited": sums.waited,
            "seconds_elsewhere": whole - sums.waited,
            "wait_share": sums.waited / whole if whole > 0 else 0.0,
            "seconds_leasing": self._leasing,
            "queue": sums.queue / sums.steps if sums.steps else None,
            "set_records": sum(one["set_records"] for one in sets),
            "set_bytes": sum(one["set_bytes"] for one in sets),
            "source_records": _sum_if_known(one.manifest.source_records for one in self._sets),
            "growth": _growth(sets),
            "repeated": self._sets[0].is_repeated,
            "coverage": _mean(sets, "coverage"),
            "reads_per_record": _mean(sets, "reads_per_record") or 0.0,
            "corrupt_records": len(self._corrupt),
            "lent": self._lent[0].to if self._lent else "",
            "mixed": sets if len(sets) > 1 else [],
        }
        return {**report, "advice": advice(report, most, resources.processors())}

    def close(self) -> None:
        """Logs the figures of the epoch, once. Its passes have ended."""
        if self._over or os.getpid() != self._process:
            return  # a forked child: the epoch of the parent continues
        self._over = True
        reads = self._reads()
        for one in self._sets:
            one.reads.read(reads * one.weight, one.coverage, one.manifest.pinned)
        # Other ranks wait about as long, and a launcher shows the lines of all ranks.
        rank = self._sets[0].reads.rank
        log.log(logging.DEBUG if rank else logging.INFO, "%s", line(self.report()))

    def _reads(self) -> int:
        """Records that were read over all ranks: counted here, or given to other readers."""
        if self._lent:
            return self._ended.reads + self._lent[-1].reads(self._length)
        # Without any reader here, a reader of the trainer probably reads `files` once.
        return self._ended.reads if self._begun else self._length

    def _of_sets(self, sums: _Sums) -> list[Report]:
        more = 0 if self._over else sums.reads
        return [
            {
                "dataset": one.manifest.dataset,
                "weight": one.weight,
                "set_records": one.manifest.num_records,
                "set_bytes": one.manifest.num_bytes,
                "growth": growth,
                "coverage": one.coverage,
                "reads_per_record": one.reads.reads_per_record(more * one.weight),
            }
            for one, growth in zip(self._sets, self._growth, strict=True)
        ]

    def _here(self) -> None:
        """Starts from zero in a forked child."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._ended, self._most = _Sums(rows=self._ended.rows), Waited()
            self._running.clear()
            self._over = True  # the parent logs it

    def _of(self, loader: Loader, began: _Began) -> _Sums:
        begin, end = began.position, loader.position
        # A loop that knows len(loader) does not ask for one more batch, and the pass does not end.
        idle = loader.seconds_idle if end == len(loader) else 0.0
        divided = loader.division
        records = divided.begin(end, loader.rank) - divided.begin(begin, loader.rank)
        return _Sums(
            steps=end - begin,
            records=records,
            reads=records * loader.world,
            rows=_rows(loader, began),
            bytes=loader.bytes_read - began.bytes,
            waited=began.opening + loader.seconds_waited - began.waited,
            elapsed=time.monotonic() - idle - began.asked,
            queue=loader.queue_filled - began.queue,
        )


def _growth(sets: Sequence[Report]) -> float | None:
    """The growth of all sets together that had a set before."""
    if len(sets) == 1:
        growth: float | None = sets[0]["growth"]
        return growth
    grown = [one for one in sets if one["growth"]]
    before = sum(one["set_bytes"] / one["growth"] for one in grown)
    return sum(one["set_bytes"] for one in grown) / before if before else None


def _sum_if_known(counts: Iterable[int]) -> int:
    counts = list(counts)
    return sum(counts) if all(counts) else 0


def _mean(sets: Sequence[Report], name: str) -> float | None:
    """The weighted mean of a figure over the sets that have it."""
    known = [one for one in sets if one[name] is not None]
    whole = sum(one["weight"] for one in known)
    return sum(one["weight"] * one[name] for one in known) / whole if whole else None


def _rows(loader: Loader, began: _Began) -> int:
    return (loader.position - began.position) * loader.batch_size * loader.world


def _most(loader: Loader, pass_sums: _Sums) -> Waited:
    return Waited(
        pass_sums.waited, pass_sums.steps, pass_sums.bytes, pass_sums.elapsed, loader.threads,
        loader.prefetch_bytes, loader.picture_bytes,
    )  # fmt: skip
