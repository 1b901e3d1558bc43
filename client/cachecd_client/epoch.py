"""One epoch: a leased file set, unchanged until it is released."""

from __future__ import annotations

import hashlib
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cachecd_client._core import count_records
from cachecd_client.errors import CachecdError, CallerError
from cachecd_client.fileset import FileSet
from cachecd_client.handover import Framework
from cachecd_client.lease import HeldLease
from cachecd_client.loader import Loader
from cachecd_client.options import Options
from cachecd_client.protocol import MAX_TEXT, ReportCorrupt
from cachecd_client.reading import CorruptRecord, Reading
from cachecd_client.reads import Reads
from cachecd_client.report import EpochReport
from cachecd_client.run import Part, Run
from cachecd_client.schema import Schema
from cachecd_client.shardfiles import ShardFiles
from cachecd_client.telemetry import Telemetry
from cachecd_client.transport import Transport

_REPORT_TIMEOUT = 0.5  # seconds that a training loop may stand still to report a corrupt record
_REPORT_PAUSE = 30.0  # seconds without another attempt, when nobody listened


class Epoch(FileSet):
    """The files that one epoch of one job reads, on lease.

    Until `release()` (or the end of the with-block, of the `epochs()` step, or of the process) the
    files stay present and byte-identical, whatever becomes of the daemon. Pinned datasets come
    unshuffled and with every record (`shuffle=False, drop_last=False`). A forked child may read
    too, and then holds the lease itself.
    """

    def __init__(
        self,
        held: HeldLease,
        transport: Transport,
        release: Callable[[HeldLease], None],
        *,
        number: int,
        run: Run | None = None,
        reads: Reads | None = None,
        coverage: float | None = None,
    ) -> None:
        """`release` ends the lease; `number` differs from the manifest's in a repeated set.

        `run`, `reads`: whose epoch it is; `coverage`: what the daemon said with the grant.
        """
        # Not FileSet's __init__, which looks at each file: the lease vouches for them.
        manifest = held.manifest
        folder = held.path.parent.parent / "shards" / manifest.dataset
        self._files = self._shards = ShardFiles(str(folder), manifest.shards)
        self._schema = None
        self.schema = Schema.from_json(manifest.schema)
        self.num_records = manifest.num_records
        self.num_bytes = manifest.num_bytes
        self.fingerprint = manifest.fingerprint
        #: The epoch's number, and its lease, dataset and job as the daemon names them.
        self.epoch = number
        self.lease = manifest.lease
        self.dataset = manifest.dataset
        self.job = manifest.job
        #: The default seed of the epoch's loaders.
        self.seed = manifest.seed if number == manifest.epoch else _seed(manifest.seed, number)
        self.pinned = manifest.pinned
        self.window = manifest.window
        self._held = held
        self._transport = transport
        self._release: Callable[[HeldLease], None] | None = release
        self._run = run
        self._read_before = 0 if run is None else run.read
        self._reads = reads or Reads(manifest.dataset)
        self._telemetry = Telemetry(self._reads, manifest, number, coverage)
        self._done = 0.0
        self._read = 0  # records delivered over all ranks, by passes that have ended
        self._latest: weakref.ref[Loader] | None = None  # whose pass began last
        self._last: tuple[int, Part | None] | None = None  # its records of a step, and its part
        self._elsewhere: tuple[int, int, Part | None] | None = None  # so many steps, and as above
        self._loaders: weakref.WeakSet[Loader] = weakref.WeakSet()
        self._over = False
        self._reported: set[tuple[int, int]] = set()
        self._silent_until = 0.0

    @property
    def progress(self) -> float:
        """0..1: how far the run is, or, for an epoch acquired by hand, how far this epoch is.

        Within the epoch it is the share of the latest loader's pass that has been delivered;
        `tf_dataset()` cannot say, so there it moves from epoch to epoch.
        """
        latest = None if self._latest is None else self._latest()
        if latest is not None:
            self._done = latest.position / len(latest)
        if self._run is None:
            return self._done
        return self._run.progress(self.epoch, self._done, self._read_before + self._records())

    def report(self) -> EpochReport:
        """What the epoch's loaders gave and waited so far, in this process, and how its set grew.

        At any time, after the release too. The last of it is logged when the epoch is released, at
        level INFO by the logger `cachecd`, by the first rank of the node.
        """
        return self._telemetry.report()

    @property
    def released(self) -> bool:
        """Whether the files may be gone."""
        return self._over or self._held.released

    def release(self) -> None:
        """Ends the passes of its loaders, then the lease. Idempotent; never fails."""
        if not self._over:
            self._end_passes()
            if self._release is None:
                self._held.close()
            else:
                self._release(self._held)

    def repeated(self, number: int) -> Epoch:
        """The same set as epoch `number`, in another order; takes over the lease of this one."""
        self._check()
        self._end_passes()
        assert self._release is not None
        return Epoch(
            self._held,
            self._transport,
            self._release,
            number=number,
            run=self._run,
            reads=self._reads,
            coverage=self._telemetry.coverage,
        )

    def end(self) -> None:
        """Tells the run what was read of it. Without a pass of a loader here, that is what a dataset
        gave other processes to read, or all of the set once."""
        if self._run is None:
            return
        if self._last is not None:
            self._run.ended(self._records(), *self._last)
        elif self._elsewhere is not None:
            steps, step, part = self._elsewhere
            self._run.ended(steps * step, step, part)
        else:
            self._run.ended(self.num_records, 1, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return (
            f"<Epoch {self.epoch} of {self.dataset!r}: {len(self._files)} files, "
            f"{self.num_records} records, lease {self.lease}>"
        )

    def __getstate__(self) -> dict[str, Any]:
        # Another process takes a lock of its own and lets go of that alone.
        mine = dict.fromkeys(("_loaders", "_latest", "_release", "_reads", "_telemetry"))
        return {**self.__dict__, **mine, "_coverage": self._telemetry.coverage}

    def __setstate__(self, state: dict[str, Any]) -> None:
        coverage = state.pop("_coverage")
        self.__dict__.update(state, _loaders=weakref.WeakSet(), _reads=Reads(state["dataset"]))
        self._telemetry = Telemetry(self._reads, self._held.manifest, self.epoch, coverage)

    def _check(self) -> None:
        if self.released:
            raise CallerError(
                f"epoch {self.epoch} of {self.dataset!r} was released, its files may be gone: read "
                "them before release(), the end of the with-block, or the next step of epochs()"
            )

    def _end_passes(self) -> None:
        self._over = True
        for loader in list(self._loaders):
            loader.close()
        if self._release is not None:  # else it is a copy, and the original tells
            self._telemetry.close()

    def _begin(self) -> None:
        self._check()
        self._held.ensure()
        self._telemetry.asks()

    def _began(self, loader: Loader) -> None:
        self._latest = weakref.ref(loader)
        self._last = loader.batch_size * loader.world, loader.part
        self._telemetry.began(loader)

    def _given(self, loader: Loader) -> None:
        self._elsewhere = len(loader), loader.batch_size * loader.world, loader.part

    def _ended(self, loader: Loader, batches: int) -> None:
        self._telemetry.ended(loader)
        self._done = loader.position / len(loader)
        self._read += batches * loader.batch_size * loader.world

    def _records(self) -> int:
        return self._read + sum(
            loader.running * loader.batch_size * loader.world for loader in list(self._loaders)
        )

    def _part(self, step: int) -> Part | None:
        if self._run is None or not self._run.limits(self.num_records):
            return None
        # Larger than the window, it is not read from all of it at a time.
        large = self.window is not None and self.num_bytes > self.window
        return self._run.part(self._shards.numbers, self._counts, step, whole_files=large)

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        """How many records each file has."""
        return count_records([(path, None) for path in self._files]).astype(np.int64)

    def _reading(self) -> Reading:
        return Reading(
            files=[(path, None) for path in self._files],
            schema=self.schema,
            num_records=self.num_records,
            fingerprint=self.fingerprint,
            seed=self.seed,
            shuffle=not self.pinned,
            drop_last=not self.pinned,
            window=self.window,
            shards=self._shards.numbers,
            begin=self._begin,
            began=self._began,
            ended=self._ended,
            part=self._part,
            corrupt=self._report,
        )

    def _loader(
        self, batch_size: int, framework: Framework, options: Options, every: int = 1
    ) -> Loader:
        loader = super()._loader(batch_size, framework, options, every)
        self._loaders.add(loader)
        return loader

    def _report(self, records: Sequence[CorruptRecord]) -> None:
        """Tells the daemon, which then verifies the shard; training never fails for it."""
        for path, offset, why in records:
            self._telemetry.corrupt(path, offset)
            shard = int(Path(path).stem)
            if (shard, offset) in self._reported or time.monotonic() < self._silent_until:
                continue
            report = ReportCorrupt(uuid.uuid4().hex, self.dataset, shard, offset, why[:MAX_TEXT])
            try:
                self._transport.ask(report, _REPORT_TIMEOUT)
                self._reported.add((shard, offset))
            except CachecdError:
                self._silent_until = time.monotonic() + _REPORT_PAUSE


def _seed(seed: int, number: int) -> int:
    """The seed of an epoch that repeats another's set: the same on every rank, and on every run."""
    digest = hashlib.sha256(f"cachecd repeated epoch {seed} {number}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
