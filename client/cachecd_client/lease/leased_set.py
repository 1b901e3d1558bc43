"""The files of one dataset that this process leases."""

from __future__ import annotations

import hashlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd_client._core import count_records
from cachecd_client.errors import CachecdError
from cachecd_client.launcher import local_ranks
from cachecd_client.lease.held_lease import HeldLease
from cachecd_client.protocol import MAX_TEXT, ReportCorrupt, shard_number
from cachecd_client.report.reads import Reads
from cachecd_client.schema import Schema
from cachecd_client.transport import Transport

log = logging.getLogger("cachecd")

_REPORT_TIMEOUT = 0.5  # seconds that the report of a corrupt record may block the training loop
_REPORT_PAUSE = 30.0  # seconds until the next attempt, if no daemon answered


class LeasedSet:
    """The files that a lease names, their schema and seed, and the reports of corrupt records. A copy
    (pickled, or in a forked child) takes a lock before it reads (`ensure`), and releases only that lock."""

    def __init__(
        self, held: HeldLease, transport: Transport, release: Callable[[HeldLease], None], *, number: int,
        reads: Reads | None = None, coverage: float | None = None, note: str = "",
    ) -> None:  # fmt: skip
        """`release` ends the lease. `number`: the number of the epoch, which differs from the manifest's
        epoch if the set is repeated. `reads`: the job's counts; `coverage` and `note`: from the grant.
        SchemaError for a damaged schema."""
        manifest = held.manifest
        self.held = held
        self.manifest = manifest
        self.dataset = manifest.dataset
        self.number = number
        datasets = held.path.parent.parent / "datasets"
        folder = datasets / manifest.dataset / manifest.generation / "shards"
        # The lease guarantees that the files exist.
        self.files = ShardFiles(
            str(folder), manifest.streams, manifest.intervals, manifest.versions
        )
        self.schema = Schema.from_json(manifest.schema)
        self.seed = _seed(manifest.seed, number) if self.is_repeated else manifest.seed
        self.reads = reads or Reads(manifest.dataset, transport.endpoint)
        self.coverage = coverage
        #: Why the set is repeated, lacks shards, or does not grow; "" if unknown.
        self.note = note
        self.transport = transport
        self._release: Callable[[HeldLease], None] | None = release
        self._reported: set[str] = set()
        self._silent_until = 0.0

    @property
    def released(self) -> bool:
        """Whether the daemon may have deleted the files."""
        return self.held.released

    @property
    def is_repeated(self) -> bool:
        """Whether this is the set of an earlier epoch, because no daemon answered, or its disk is full."""
        return self.number != self.manifest.epoch

    @property
    def is_copy(self) -> bool:
        """Whether another process has the original."""
        return self._release is None

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The number of records in each file."""
        totals = self.manifest.num_records, self.manifest.num_bytes
        return count_records([(path, None) for path in self.files], totals).astype(np.int64)

    def release(self) -> None:
        """Ends the lease, or the lock of a copy. Idempotent; never raises."""
        if self._release is None:
            self.held.close()
        else:
            self._release(self.held)

    def repeated(self, number: int) -> LeasedSet:
        """Returns the same set for epoch `number`, in another order. The result owns the lease."""
        assert self._release is not None
        return LeasedSet(
            self.held, self.transport, self._release, number=number, reads=self.reads,
            coverage=self.coverage,
        )  # fmt: skip

    def report(self, path: str, offset: int, why: str) -> None:
        """Reports the first corrupt record of each shard to the daemon, which then verifies the shard.
        Never raises an error."""
        if path in self._reported or time.monotonic() < self._silent_until:
            return
        number, _, version = Path(path).stem.partition(".")
        shard = self.dataset, self.manifest.generation, int(number), int(version or 0)
        report = ReportCorrupt(uuid.uuid4().hex, *shard, offset, why[:MAX_TEXT])
        try:
            self.transport.ask(report, _REPORT_TIMEOUT)
            self._reported.add(path)
        except CachecdError:
            self._silent_until = time.monotonic() + _REPORT_PAUSE

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_release": None, "reads": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        reads = Reads(state["dataset"], state["transport"].endpoint, local_ranks()[0])
        self.__dict__.update(state, reads=reads)


def _seed(seed: int, number: int) -> int:
    """Returns the seed of an epoch that repeats a set. The seed is the same on every rank and in every
    run."""
    digest = hashlib.sha256(f"cachecd repeated epoch {seed} {number}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


class ShardFiles(Collection[str]):
    """The paths of a lease's shards, in the order of their numbers. Each path is made when it is used:
    making the paths of 100,000 shards takes 40 ms, and their numbers take 2 ms."""

    def __init__(
        self, folder: str, streams: int, intervals: Sequence[Sequence[int]], versions: Iterable[Any] = (),
    ) -> None:  # fmt: skip
        """`intervals` and `versions`: as in a manifest."""
        self.folder = folder
        self._streams = streams
        self._intervals = intervals
        self._versions: dict[int, int] = dict(versions)
        self._length = sum(last - first + 1 for _, first, last in intervals)

    def __len__(self) -> int:
        return self._length

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """The numbers of the shards, ascending."""
        parts = (
            shard_number(self._streams, stream, np.arange(first, last + 1))
            for stream, first, last in self._intervals
        )
        return np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))

    def __contains__(self, path: object) -> bool:
        return os.path.dirname(str(path)) == self.folder

    def __iter__(self) -> Iterator[str]:
        return map(self._path, self.numbers.tolist())

    def _path(self, number: int) -> str:
        version = self._versions.get(number, 0)
        return f"{self.folder}/{number:010d}{f'.{version}' if version else ''}.tfrecord"


class JoinedFiles(Collection[str]):
    """The files of several leases, one after another."""

    def __init__(self, parts: Sequence[ShardFiles]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __contains__(self, path: object) -> bool:
        return any(path in part for part in self._parts)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._parts)
