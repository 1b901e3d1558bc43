"""What the passes of an epoch's loaders add up to, while they run and when they are over."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachecd_client.reads import Reads
from cachecd_client.report import EpochReport, Waited, advice

if TYPE_CHECKING:
    from cachecd_client.loader import Loader
    from cachecd_client.protocol import Manifest

log = logging.getLogger("cachecd")


@dataclass(slots=True)
class _Sums:
    """Of some passes."""

    steps: int = 0
    records: int = 0
    reads: int = 0  # records, over all ranks
    bytes: int = 0
    waited: float = 0.0
    elapsed: float = 0.0
    queue: float = 0.0  # summed over the steps

    def add(self, other: _Sums) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class _Began:
    """Where a loader stood when its pass began; its figures but the position are sums over passes."""

    asked: float
    opening: float
    position: int
    waited: float
    bytes: int
    queue: float


class Telemetry:
    """The figures of one epoch in one process.

    Nothing here happens for a record or a batch: the core counts, and is asked when a pass ends or
    somebody wants to know.
    """

    def __init__(
        self, reads: Reads, manifest: Manifest, number: int, coverage: float | None = None
    ) -> None:
        self._reads = reads
        self._manifest = manifest
        self._number = number
        self.coverage = coverage
        self._leasing, self._growth = reads.leased(
            manifest.shards, manifest.num_records, manifest.num_bytes
        )
        reads.latest = (time.monotonic(), self.report)
        self._process = os.getpid()
        self._asked = 0.0
        self._ended = _Sums()
        self._most = Waited()
        self._running: weakref.WeakKeyDictionary[Loader, _Began] = weakref.WeakKeyDictionary()
        self._corrupt: set[tuple[str, int]] = set()
        self._begun = False  # a pass
        self._over = False

    def asks(self) -> None:
        """A pass is about to open its files."""
        self._asked = time.monotonic()

    def began(self, loader: Loader) -> None:
        """They are open."""
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
        """The pass that it began last is over."""
        began = self._running.pop(loader, None)
        if began is None:
            return
        found = self._of(loader, began)
        self._ended.add(found)
        if found.waited > self._most.seconds:
            self._most = _most(loader, found)

    def corrupt(self, path: str, offset: int) -> None:
        """A record was found to be."""
        self._corrupt.add((path, offset))

    def report(self) -> EpochReport:
        """All until now."""
        self._here()
        sums, most = _Sums(), self._most
        sums.add(self._ended)
        for loader, began in list(self._running.items()):
            found = self._of(loader, began)
            sums.add(found)
            if found.waited > most.seconds:
                most = _most(loader, found)
        manifest = self._manifest
        report = EpochReport(
            dataset=manifest.dataset,
            job=manifest.job,
            epoch=self._number,
            steps=sums.steps,
            records=sums.records,
            bytes=sums.bytes,
            seconds_waited=sums.waited,
            seconds_elsewhere=max(0.0, sums.elapsed - sums.waited),
            seconds_leasing=self._leasing,
            queue=sums.queue / sums.steps if sums.steps else None,
            set_records=manifest.num_records,
            set_bytes=manifest.num_bytes,
            growth=self._growth,
            coverage=self.coverage,
            reads_per_record=self._reads.reads_per_record(0 if self._over else sums.reads),
            corrupt_records=len(self._corrupt),
            advice="",
        )
        said = advice(report, most, len(os.sched_getaffinity(0)))
        return dataclasses.replace(report, advice=said) if said else report

    def close(self) -> None:
        """The epoch is over, and its passes have ended: says so, once."""
        if self._over or os.getpid() != self._process:
            return  # in a forked child, whose parent's epoch goes on
        self._over = True
        # What is not read through a loader, by TensorFlow for example, most likely is read once.
        reads = self._ended.reads if self._begun else self._manifest.num_records
        self._reads.read(reads, self.coverage, self._manifest.pinned)
        # What one rank waited the others do mostly too, and a launcher shows the lines of all.
        log.log(logging.DEBUG if self._reads.rank else logging.INFO, "%s", self.report())

    def _here(self) -> None:
        """In a forked child nothing has been read yet."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._ended, self._most = _Sums(), Waited()
            self._running.clear()
            self._over = True  # of which the parent tells

    def _of(self, loader: Loader, began: _Began) -> _Sums:
        begin, end = began.position, loader.position
        size = loader.batch_size
        records = (end - begin) * size
        if not loader.drop_last and loader.part is None:
            # The last rows of the last batches may be padding.
            own = -((loader.rank - self._manifest.num_records) // loader.world)
            records = min(end * size, own) - min(begin * size, own)
        return _Sums(
            steps=end - begin,
            records=records,
            reads=records * loader.world,
            bytes=loader.bytes_read - began.bytes,
            waited=began.opening + loader.seconds_waited - began.waited,
            elapsed=time.monotonic() - began.asked,
            queue=loader.queue_filled - began.queue,
        )


def _most(loader: Loader, found: _Sums) -> Waited:
    return Waited(
        found.waited, found.steps, found.bytes, found.elapsed, loader.threads, loader.prefetch_bytes
    )
