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
from cachecd_client.loader.reading import Agreed, CorruptRecord, Reading
from cachecd_client.loader.sweep import Part, Selection, Sweep
from cachecd_client.report.summary import Report
from cachecd_client.report.telemetry import Counted, Lent, Telemetry
from cachecd_client.runs.passes import Passes
from cachecd_client.runs.run import Run
from cachecd_client.runs.run_state import RunState, StateWriter
from cachecd_client.schema import Schema

log = logging.getLogger("cachecd")


_warned: set[str] = set()  # datasets


def _warn_of_window(dataset: str, at_random: int) -> None:
    """Once, where the daemon chose the window by more memory than this process has."""
    if at_random <= (memory := resources.memory()) or dataset in _warned:
        return
    _warned.add(dataset)
    log.warning(
        "%s: the set is read at random, %.3g GB of it at a time, and the cgroup of this process allows "
        "%.3g GB of memory, so much is read from the disk again and again: set cache.window to half of the "
        "memory that trainers have",
        dataset, at_random / 1e9, memory / 1e9,
    )  # fmt: skip


class Epoch(FileSet):
    """The files that one epoch of one job reads, on lease.

    Until `release()` (or the end of the with-block, of the `epochs()` step, or of the process) the
    files stay present and byte-identical, whatever becomes of the daemon. Pinned datasets come
    unshuffled and with every record (`shuffle=False, drop_last=False`: a last batch may be short). A
    forked child may read too, and then holds the lease itself.
    """

    #: The epoch's number, and its lease, dataset and job as the daemon names them.
    epoch: int
    lease: str
    dataset: str
    job: str
    #: The default seed of the epoch's loaders.
    seed: int
    pinned: bool
    _resumed: RunState | None  # till the first loader goes on from there

    def __init__(
        self, leased: LeasedSet, run: Run | None = None, resumed: RunState | None = None
    ) -> None:
        """`resumed`: where an earlier process left this very set."""
        # Not FileSet's __init__, which looks at each file: the lease vouches for them.
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
        self._made_of([leased], [1.0], self.num_records, run, resumed)

    def _made_of(
        self, sets: Sequence[LeasedSet], weights: Sequence[float], length: int, run: Run | None,
        resumed: RunState | None, shares: Mapping[str, float] = MappingProxyType({}), key: int = 0,
    ) -> None:  # fmt: skip
        """`weights`: of each set; `length`: records, unless the run limits them. `shares` and `key`: of a
        mixture, for its states."""
        self._sets = sets
        self._weights = weights
        self._run = run
        #: How much of it is read, so that other nodes with other sets take as many steps.
        self.agreed: Agreed | None = None
        self._over = False
        self._handed_on = False  # the leases, to a repeated epoch
        #: Of each set, what was delivered of it before this epoch, which then repeats it.
        self._before = [leased.held.delivered for leased in sets]
        self._resumed = resumed
        sweeps, ranks = ({}, (1, 1)) if run is None else (run.sweeps, run.ranks)
        manifests = [leased.manifest for leased in sets]
        self._state = StateWriter(self.epoch, manifests, sweeps, ranks, shares, key)
        self._passes = Passes(self.epoch, length, self._telemetry(length), run)
        if resumed is not None:
            of_epoch = resumed.of_epoch
            if run is not None:
                of_epoch = run.of_node(of_epoch, resumed.ranks)
            self._passes.go_on(of_epoch, resumed.share)

    @property
    def length(self) -> int:
        """Records of one pass over all ranks, where nothing else says how many there are to be."""
        return self._passes.length

    def agree(self, agreed: Agreed) -> None:
        """Reads so much of it, whatever the loaders that are made from now on."""
        self.agreed = agreed
        self._passes.length = agreed.least

    def share(self, replica: tuple[int, int], share: tuple[int, int]) -> None:
        """Its loaders are of this replica, (number, count) of the run, which has this (rank, world) in the
        set."""
        self._replica, self._share = replica, share

    def _look_for_other_nodes(self) -> None:
        """They have caches of their own."""

    @property
    def progress(self) -> float:
        """0..1: how far the run is, or, for an epoch acquired by hand, how far this epoch is.

        Within the epoch it is the share of the latest loader's pass that has been delivered. Where
        `tf_dataset()` or a dataset's workers read, it moves from epoch to epoch.
        """
        return self._passes.progress

    def report(self) -> Report:
        """The epoch's figures by name: what its loaders gave and waited so far in this process, and how
        its set grew. docs/telemetry.md explains them.

        At any time, after the release too. When the epoch is released, the logger `cachecd` has a line of
        them, at level INFO, by the first rank of the node.
        """
        return self._passes.telemetry.report()

    @property
    def released(self) -> bool:
        """Whether the files may be gone."""
        return self._over or any(leased.released for leased in self._sets)

    def release(self) -> None:
        """Ends the passes of its loaders, then the lease. Idempotent; never fails."""
        if self._handed_on:
            return
        # Each part may be done again, so that what an interrupt has cut short is ended by another call.
        if not self._over:
            self._end_passes()
        self.count_delivered()
        for leased in self._sets:
            leased.release()

    def repeated(self, number: int, weights: Mapping[str, float]) -> Epoch:
        """The same set as epoch `number`, in another order; takes over the lease of this one.

        `weights` are for several sets.
        """
        self._check()
        self._end_passes()
        self.count_delivered()
        epoch = Epoch(self._sets[0].repeated(number), self._run)
        self._handed_on = True
        return epoch

    def end(self) -> None:
        """Tells the run what was read of it: by loaders here, or what others were given to read, of whom
        nobody tells, if that is more; all of the set once, if there is neither."""
        self._passes.tell_run()

    def ends_run(self, loader: Loader) -> bool:
        """Whether the run is over after the pass that this loader made."""
        read, step = self._passes.before + self._passes.rows, loader.batch_size * loader.world
        return self._run is not None and self._run.ends_before(self.epoch + 1, read, step)

    def count_delivered(self) -> None:
        """Counts what this process was delivered of each set until now, for the next report to the daemon,
        which may replace what was delivered. What nobody counts counts as all of it."""
        if any(leased.released or leased.is_copy for leased in self._sets):
            return
        records = self._passes.delivered(self.length)
        for leased, weight, before in zip(self._sets, self._weights, self._before, strict=True):
            share = 1.0
            if records is not None:
                share = records * weight / max(1, leased.manifest.num_records)
            leased.held.delivered = max(leased.held.delivered, min(1.0, before + share))

    @property
    def leases(self) -> dict[str, HeldLease]:
        """The lease of each dataset, unless it was released."""
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

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._passes.telemetry = self._telemetry(self._passes.length)

    def _telemetry(self, length: int) -> Telemetry:
        counted = [
            Counted(leased.manifest, leased.reads, leased.coverage, weight, leased.is_repeated)
            for leased, weight in zip(self._sets, self._weights, strict=True)
        ]
        return Telemetry(self.dataset, counted, self.epoch, length)

    def _about(self, loader: Loader) -> dict[str, Any]:
        after = {} if loader.part is None else loader.part.selection.after
        read, of_epoch = self._passes.before, self._passes.rows
        return self._state.write(loader.position, len(loader), after, read, of_epoch)

    @property
    def place(self) -> int:
        """Of the batch that its first loader begins with, from 1 on; 0 for an epoch that is not resumed."""
        return 0 if self._resumed is None else 1 + self._resumed.position

    def begin_anew(self) -> None:
        if self._resumed is not None:
            self._resumed = None
            self._passes.begin_anew()

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
                f"epoch {self.epoch} of {self.dataset!r} was released, its files may be gone: read "
                "them before release(), the end of the with-block, or the next step of epochs()"
            )

    def _end_passes(self) -> None:
        self._over = True
        self._passes.close()
        if not self._sets[0].is_copy:  # else the original tells
            self._passes.telemetry.close()

    def _begin(self) -> None:
        self._check()
        for leased in self._sets:
            leased.held.ensure()
        self._passes.telemetry.asks()

    def lend(self, lent: Lent, loader: Loader | None = None) -> None:
        self._passes.lend(lent, loader)

    def _part(self, step: int, seed: int) -> Part | None:
        run, leased = self._run, self._sets[0]
        if run is None or not run.limits(self.length):
            return None
        # Larger than the window, it is not read from all of it at a time.
        large = self.window is not None and self.num_bytes > self.window
        numbers, counts = leased.files.numbers, leased.counts

        def take(wanted: int) -> Selection:
            sweep = run.sweeps.get(self.dataset, Sweep()).of(leased.manifest.generation)
            stages, after = sweep.take(numbers, counts, wanted, whole_files=large, seed=seed)
            return Selection(stages, {self.dataset: after})

        return run.part(int(counts.sum()), step, take)

    @property
    def _numbers(self) -> NDArray[np.int64]:
        """What `_shard` calls each file."""
        return np.concatenate([leased.files.numbers for leased in self._sets])

    def _reading(self, schema: Schema) -> Reading:
        _warn_of_window(self.dataset, min(self.window or self.num_bytes, self.num_bytes))
        return Reading(
            files=[(path, None) for path in self._files],
            schema=schema,
            num_records=self.num_records,
            num_bytes=self.num_bytes,
            fingerprint=self.fingerprint,
            seed=self.seed,
            shuffle=not self.pinned,
            drop_last=not self.pinned,
            window=self.window,
            shards=self._numbers,
            begin=self._begin,
            began=self._passes.began,
            ended=self._passes.ended,
            part=self._part,
            agreed=self.agreed,
            share=self._share,
            about=self._about,
            corrupt=self._report,
        )

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
            self._passes.telemetry.corrupt(path, offset)
            # A damaged picture came so from its source: the shard's CRCs are right.
            for leased in self._sets if not why.startswith("picture: ") else ():
                if leased.has(path):
                    leased.report(path, offset, why)
