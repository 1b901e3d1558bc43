"""One epoch: a leased file set, unchanged until it is released."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cachecd_client import resources
from cachecd_client.errors import CallerError
from cachecd_client.files.file_set import FileSet
from cachecd_client.lease.held_lease import HeldLease
from cachecd_client.lease.leased_set import LeasedSet
from cachecd_client.loader.framework import Framework
from cachecd_client.loader.loader import Loader
from cachecd_client.loader.options import Options
from cachecd_client.loader.reading import Agreed, CorruptRecord, Lent, Reading
from cachecd_client.loader.sweep import Part, Selection, Sweep
from cachecd_client.report.summary import Report
from cachecd_client.runs.passes import Passes
from cachecd_client.runs.run import Run, RunState, state_of
from cachecd_client.schema import Schema

log = logging.getLogger("cachecd")


_warned: set[str] = set()  # datasets


def _warn_of_window(dataset: str, at_random: int) -> None:
    """Warns once if the daemon chose a window larger than the memory of this process."""
    if at_random <= (memory := resources.memory()) or dataset in _warned:
        return
    _warned.add(dataset)
    log.warning(
        "%s: records are read at random from %.3g GB at a time, but the cgroup of this process allows %.3g "
        "GB of memory, so the disk is read again and again: set cache.window to half of the memory of the "
        "trainers",
        dataset, at_random / 1e9, memory / 1e9,
    )  # fmt: skip


class Epoch(FileSet):
    """The leased files that one epoch of one job reads.

    Until `release()` (or the end of the with-block, of the `epochs()` step, or of the process) the files
    stay present and byte-identical, even if the daemon ends. Pinned datasets are delivered unshuffled and
    with every record (`shuffle=False, drop_last=False`: the last batch may be short). A forked child may
    also read, and then holds the lease as well.
    """

    #: The number of the epoch, and the daemon's names of the lease, the dataset and the job.
    epoch: int
    lease: str
    dataset: str
    job: str
    #: The default seed of the epoch's loaders.
    seed: int
    pinned: bool
    _resumed: RunState | None  # None once the first loader has loaded the state

    def __init__(
        self, leased: LeasedSet, run: Run | None = None, resumed: RunState | None = None
    ) -> None:
        """`resumed`: the state of an earlier process with this set."""
        # FileSet's __init__ is not called, because it checks each file, which the lease guarantees.
        manifest = leased.manifest
        self._files = leased.files
        self._schema = None
        self.schema = leased.schema
        self.num_records = manifest.num_records
        self.num_bytes = manifest.num_bytes
        self.fingerprint = manifest.fingerprint
        self.epoch = leased.number
        self.lease = manifest.lease
        self.dataset = manifest.dataset
        self.job = manifest.job
        self.seed = leased.seed
        self.pinned = manifest.pinned
        self.window = manifest.window if resumed is None else resumed.window
        self._set_up([leased], [1.0], self.num_records, run, resumed)

    def _set_up(
        self, sets: Sequence[LeasedSet], weights: Sequence[float], length: int, run: Run | None,
        resumed: RunState | None, shares: Mapping[str, float] = MappingProxyType({}), key: int = 0,
    ) -> None:  # fmt: skip
        """`weights`: the share of each set in the records; `length`: records, unless the run limits them.
        `shares` and `key`: the weights and the key of a mixture, for its states."""
        self._sets = sets
        self._weights = weights
        self._run = run
        #: The records to read, so that other nodes with other sets take as many steps.
        self.agreed: Agreed | None = None
        self._has_ended = False
        self._is_repeated = False  # by another epoch, which owns the leases
        #: If this epoch repeats an epoch: the fraction of each set that was delivered before.
        self._before = [leased.held.delivered for leased in sets]
        self._resumed = resumed
        self._sweeps, self._ranks = ({}, (1, 1)) if run is None else (run.sweeps, run.ranks)
        self._mixed = dict(shares), key
        self._passes = Passes(self.dataset, sets, weights, self.epoch, length, run)
        if resumed is not None:
            of_epoch = resumed.of_epoch
            if run is not None:
                of_epoch = run.of_node(of_epoch, resumed.ranks)
            self._passes.resume(of_epoch, resumed.share)

    @property
    def length(self) -> int:
        """The records of one pass across all ranks, unless the run limits them."""
        return self._passes.length

    def agree(self, agreed: Agreed) -> None:
        """Limits the records of all loaders that are made later."""
        self.agreed = agreed
        self._passes.length = agreed.least

    def share(self, replica: tuple[int, int], share: tuple[int, int]) -> None:
        """Sets the replica of this process, (number, count), and its (rank, world) in the set."""
        self._replica, self._share = replica, share

    def _check_other_nodes(self) -> None:
        """Does nothing, because other nodes have their own caches."""

    @property
    def progress(self) -> float:
        """0..1: the progress of the run, or of this epoch if it was acquired without a run.

        Within an epoch it is the progress of the latest pass of a loader. If `tf_dataset()` or the workers
        of a dataset read, it changes only from epoch to epoch.
        """
        return self._passes.progress

    def report(self) -> Report:
        """The figures of the epoch by name: batches and waiting times of its loaders in this process, and
        the growth of its set. docs/telemetry.md explains them.

        Available at any time, also after the release. At the release, the first rank of the node logs the
        main figures in one line, at level INFO of the logger `cachecd`.
        """
        return self._passes.report()

    @property
    def released(self) -> bool:
        """Whether the daemon may have deleted the files."""
        return self._has_ended or any(leased.released for leased in self._sets)

    def release(self) -> None:
        """Ends the passes of the epoch's loaders, then the lease. Idempotent; never raises an error."""
        if self._is_repeated:
            return
        # Each step may be repeated, so that after an interrupt another call finishes the release.
        if not self._has_ended:
            self._end_passes()
        self.count_delivered()
        for leased in self._sets:
            leased.release()

    def repeated(self, number: int, weights: Mapping[str, float]) -> Epoch:
        """Returns the same sets as epoch `number`, in another order. The new epoch owns the leases.

        `weights`: the weights of a mixture; datasets that are not leased are omitted.
        """
        self._check()
        self._end_passes()
        self.count_delivered()
        epoch = self._repeat(number, weights)
        self._is_repeated = True
        return epoch

    def _repeat(self, number: int, weights: Mapping[str, float]) -> Epoch:
        return Epoch(self._sets[0].repeated(number), self._run)

    def end(self) -> None:
        """Reports the records that were read to the run."""
        self._passes.report_to_run()

    def ends_run(self, loader: Loader) -> bool:
        """Whether the run ends after this loader's pass."""
        read, step = self._passes.before + self._passes.rows, loader.batch_size * loader.world
        return self._run is not None and self._run.ends_before(self.epoch + 1, read, step)

    def count_delivered(self) -> None:
        """Updates the delivered fraction of each lease for the next report to the daemon, which may then
        evict as much. If no reader was made here, the whole set counts as delivered."""
        if any(leased.released or leased.is_copy for leased in self._sets):
            return
        records = self._passes.delivered()
        for leased, weight, before in zip(self._sets, self._weights, self._before, strict=True):
            share = 1.0
            if records is not None:
                share = records * weight / max(1, leased.manifest.num_records)
            leased.held.delivered = max(leased.held.delivered, min(1.0, before + share))

    @property
    def leases(self) -> dict[str, HeldLease]:
        """The leases that were not released, by dataset."""
        return {leased.dataset: leased.held for leased in self._sets if not leased.released}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.epoch} of {self.dataset!r}: {len(self._files)} files, "
            f"{self.num_records} records, {self.num_bytes} bytes, lease {self.lease}"
            f"{' (released)' * self.released}>"
        )

    def _about(self, loader: Loader) -> dict[str, Any]:
        share, sweeps = loader.position / len(loader), self._sweeps
        if share >= 1 and loader.part is not None:
            sweeps = {**sweeps, **loader.part.selection.after}
        return state_of(
            self.epoch, [leased.manifest for leased in self._sets], sweeps, self._ranks, *self._mixed,
            share=share, read=self._passes.before, of_epoch=self._passes.rows,
            tokens=self._run.window if self._run else 0,
        )  # fmt: skip

    @property
    def place(self) -> int:
        """If the epoch resumes, the first batch of its first loader, from 1; else 0."""
        return 0 if self._resumed is None else 1 + self._resumed.position

    def drop_state(self) -> None:
        if self._resumed is not None:
            self._resumed = None
            self._passes.restart()

    @contextmanager
    def _resuming(self) -> Iterator[dict[str, Any] | None]:
        resumed, self._resumed = self._resumed, None
        try:
            yield None if resumed is None else resumed.state
        except BaseException:
            self._resumed = resumed
            raise

    def _check(self) -> None:
        if self.released:
            raise CallerError(
                f"epoch {self.epoch} of {self.dataset!r} was released, and its files may be deleted: read "
                "them before release(), the end of the with-block, or the next step of epochs()"
            )

    def _end_passes(self) -> None:
        self._has_ended = True
        self._passes.close()
        if not self._sets[0].is_copy:  # only the original logs the report
            self._passes.log_report()

    def _begin(self) -> None:
        self._check()
        for leased in self._sets:
            leased.held.ensure()

    def lend(self, lent: Lent) -> None:
        self._passes.lend(lent)

    def _part(self, step: int, seed: int) -> Part | None:
        run, leased = self._run, self._sets[0]
        if run is None or not run.limits(self.length):
            return None
        # Only a set that fits into the window is read everywhere at once.
        large = self.window is not None and self.num_bytes > self.window
        numbers, counts = leased.files.numbers, leased.counts

        def take(wanted: int) -> Selection:
            sweep = run.sweeps.get(self.dataset, Sweep()).of(leased.manifest.generation)
            stages, after = sweep.take(numbers, counts, wanted, whole_files=large, seed=seed)
            return Selection(stages, {self.dataset: after})

        return run.part(int(counts.sum()), step, take)

    @property
    def _numbers(self) -> NDArray[np.int64]:
        return np.concatenate([leased.files.numbers for leased in self._sets])

    def _reading(self, schema: Schema) -> Reading:
        _warn_of_window(self.dataset, min(self.window or self.num_bytes, self.num_bytes))
        return Reading(
            files=[(path, None) for path in self._files], schema=schema, num_records=self.num_records,
            num_bytes=self.num_bytes, fingerprint=self.fingerprint, seed=self.seed,
            shuffle=not self.pinned, drop_last=not self.pinned, window=self.window,
            shards=self._numbers, begin=self._begin, began=self._passes.began, ended=self._passes.ended,
            pulse=self._passes.pulse, part=self._part, agreed=self.agreed, share=self._share,
            about=self._about, corrupt=self._report,
        )  # fmt: skip

    def _loader(
        self, batch_size: int, framework: Framework, options: Options, every: int = 1
    ) -> Loader:
        with self._resuming() as begin:
            loader = super()._loader(batch_size, framework, options, every)
            if begin is not None:
                loader.load_state_dict(begin)
        self._passes.add(loader)
        return loader

    def _report(self, records: Sequence[CorruptRecord]) -> None:
        for path, offset, why in records:
            self._passes.corrupt(path, offset)
            # If a picture is damaged, its source is damaged: the CRCs of the shard are right.
            for leased in self._sets if not why.startswith("picture: ") else ():
                if path in leased.files:
                    leased.report(path, offset, why)
