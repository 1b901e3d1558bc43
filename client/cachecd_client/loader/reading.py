"""The input of a loader: files, schema and defaults, the part of this rank, and observers of passes."""

from __future__ import annotations

import hashlib
import logging
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachecd_client._core import Division
from cachecd_client.errors import CallerError
from cachecd_client.launcher import local_ranks
from cachecd_client.loader.figures import Figures
from cachecd_client.loader.sweep import Part
from cachecd_client.options import flag, integer
from cachecd_client.schema import Schema

log = logging.getLogger("cachecd")

LARGEST_SEED = 2**64 - 1

#: What happens to records that do not fill a batch on every rank: they are dropped, or they make a short
#: batch, or a batch that is padded with rows without a record.
Last = Literal["drop", "short", "pad"]


class Agreed(NamedTuple):
    """How many records of a node's set to read, so that all ranks of all nodes take as many steps."""

    least: int
    """If every batch must be full."""
    most: int
    """If every record must be read: the records, and padding after them."""


def settle(
    options: Mapping[str, object], shuffle: bool, seed: int, drop_last: bool
) -> tuple[bool, int, Last]:
    """Checks the options `shuffle`, `seed`, `drop_last` and `pad_last`, and returns them with these
    defaults. CallerError."""

    def given(name: str, default: bool) -> bool:
        return default if (value := options.get(name)) is None else flag(name, value)

    if (wanted := options.get("seed")) is not None:
        seed = integer("seed", wanted, 0, LARGEST_SEED)
    pads = given("pad_last", False)
    if pads and given("drop_last", False):
        raise CallerError("drop_last=True, pad_last=True: expected only one of them")
    last: Last = "pad" if pads else "drop" if given("drop_last", drop_last) else "short"
    return given("shuffle", shuffle), seed, last


def divide(
    records: int, batch_size: int, world: int, last: Last, nodes: tuple[int, int] | None = None
) -> Division:
    """Divides one pass over a set. `nodes`: if the run has several nodes, the fewest and the most records
    of a node. CallerError, on all ranks, if there is no step, or if a step has no record for some rank."""
    if not records:
        raise CallerError(
            "the set has no records, because its files are empty: there is nothing to read"
        )
    try:
        division = Division(records, batch_size, world, last, nodes)
    except ValueError as error:
        raise CallerError(
            f"{error}; pad_last=True adds rows that `_valid` masks, drop_last=True drops the records that "
            "do not fill a batch"
        ) from error
    if not division.steps:
        least = records if nodes is None else min(records, nodes[0])
        raise CallerError(
            f"{least} records across {world} ranks make no batch of {batch_size}: choose a smaller "
            "batch_size, or drop_last=False"
        )
    return division


def omitted_records(division: Division, step: int, agreed: Agreed | None = None) -> int:
    """Returns how many records, across all ranks, a whole pass omits; `step`: records of one step. With
    `agreed`, counts only records that all nodes can read."""
    records = division.records if agreed is None else min(division.records, agreed.least)
    return max(0, records - division.steps * step)


def seed_of(seed: int, number: int) -> int:
    """Returns the seed of a pass. Pass 0 has the seed of the loader."""
    if not number:
        return seed
    digest = hashlib.sha256(f"cachecd pass {seed} {number}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


class Lent(NamedTuple):
    """Batches for another reader, which does not count them, in steps of `step` records across all
    ranks."""

    to: str
    steps: int
    step: int
    dropped: int = 0  # records that its pass omits
    part: Part | None = None
    loader: weakref.ref[Any] | None = None  # reads them instead if it begins a pass here

    def reads(self, length: int) -> int:
        """Returns the records read across all ranks, if the set has `length` records; the last step may be
        padded."""
        reads = self.steps * self.step
        return length if 0 <= reads - length < self.step else reads

    def delivered(self, length: int) -> int:
        """Returns `reads`, plus the records that the pass omits if they are less than a step."""
        return self.reads(length) + (self.dropped if self.dropped < self.step else 0)


CorruptRecord = tuple[str, int, str]  # path, offset, why


def _ignore(*_: Any) -> None: ...


def weakly(observer: Callable[[Any], None] | None, loader: Any) -> Callable[[], None] | None:
    """Returns a function that calls the observer with the loader, without keeping the loader alive."""
    if observer is None:
        return None
    this, notify = weakref.ref(loader), observer

    def observe() -> None:
        if (alive := this()) is not None:
            notify(alive)

    return observe


@dataclass(frozen=True)
class Reading:
    """The input of a loader, its defaults, and the observers of its passes.

    `files`: (path, offsets or None), as for the core. `begin` is called before files are opened, and raises
    an error if they may no longer be read. `began` gets the loader when a pass has begun; `ended` gets the
    loader and the figures of a pass that has ended. `pulse` gets the loader at most once a second, while a
    loop takes batches or waits for a batch. `corrupt` gets each corrupt record once, between two
    batches. `part` gets the number of records in a step across all ranks, and a seed. It returns the part
    of the set to read, or None for one pass over the whole set. `about` returns more values for the state
    of a loader.
    """

    files: Sequence[tuple[str, NDArray[np.uint64] | None]]
    schema: Schema
    num_records: int
    num_bytes: int
    fingerprint: str
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = True
    window: int | None = None  # shuffle window in bytes; None: the whole set
    shards: NDArray[np.int64] | None = None  # the value of `_shard` for each file; None: its index
    datasets: NDArray[np.int64] | None = None  # the value of `_dataset` for each file
    begin: Callable[[], None] = lambda: None
    began: Callable[[Any], None] = _ignore
    ended: Callable[[Any, Figures], None] = _ignore
    pulse: Callable[[Any], None] | None = None
    part: Callable[[int, int], Part | None] = lambda _, __: None
    agreed: Agreed | None = None  # with the other nodes of the run, which read other sets
    share: tuple[int, int] | None = None  # rank and world; None: the launcher's
    about: Callable[[Any], dict[str, Any]] = lambda _: {}
    corrupt: Callable[[Sequence[CorruptRecord]], None] = _ignore

    def place(self, rank: int | None, world: int | None) -> tuple[int, int]:
        """Returns the rank of this process, and the number of ranks that share the set. CallerError for an
        impossible rank, or for another rank than the processes of the run agreed on."""
        if rank is None and world is None:
            return self.share or place(None, None)
        given = place(rank, world)
        if self.agreed is not None and given != (own := self.share or local_ranks()):
            raise CallerError(
                f"rank={rank}, world={world}: the processes of this run agreed on rank={own[0]}, "
                f"world={own[1]} for this process. Pass rank= and world= to epochs(), not to its loaders"
            )
        return given

    def divided(
        self, batch_size: int, world: int, last: Last, seed: int
    ) -> tuple[Part | None, Division]:
        """Returns the part to read (None: the whole set), and its division into batches. CallerError."""
        batch_size = integer("batch_size", batch_size, 1)
        if (part := self.part(batch_size * world, seed)) is not None:
            records = part.steps * batch_size * world
            return part, Division(records, batch_size, world, last)
        return None, divide(self.num_records, batch_size, world, last, self.agreed)


def place(rank: int | None, world: int | None) -> tuple[int, int]:
    """Returns the caller's rank and world; default: the launcher's. CallerError for impossible values."""
    if rank is None and world is None:
        refuse_keras_replicas()
        return local_ranks()
    if rank is None or world is None:
        raise CallerError(f"rank={rank}, world={world}: expected both, or neither")
    world = integer("world", world, 1)
    rank = integer("rank", rank, 0)
    if rank >= world:
        raise CallerError(f"rank={rank}, world={world}: expected 0 <= rank < world")
    return rank, world


def keras_distribution() -> Any:
    """Returns Keras' distribution across several processes; None if Keras has no such distribution."""
    library = sys.modules.get("keras.distribution")
    current = getattr(library, "distribution", lambda: None)()
    return current if getattr(current, "num_processes", 1) > 1 else None


def refuse_keras_replicas() -> None:
    """Raises CallerError if Keras spreads a model replica over processes: without `rank=`, these processes
    would read different records."""
    if (current := keras_distribution()) is None:
        return
    processes = current.num_processes
    replicas = getattr(current, "num_model_replicas", processes)
    if replicas < processes:
        raise CallerError(
            f"{type(current).__name__} has {processes} processes for {replicas} replicas of the model: "
            "the processes of one replica need the same records, but would read different records. Give "
            "rank= (the number of the replica) and world= (the number of replicas) to the run (epochs() or "
            "cache.jax()), or to the loader of a FileSet"
        )


class Losses:
    """Counts the corrupt records of a loader's passes. Has no reference to the loader, because the reader
    owns it."""

    def __init__(self, report: Callable[[Sequence[CorruptRecord]], None]) -> None:
        self._report = report
        self._count = 0
        self._first: CorruptRecord | None = None

    def __call__(self, records: Sequence[CorruptRecord]) -> None:
        # A damaged sidecar loses no record.
        lost = [record for record in records if not record[2].startswith("sidecar: ")]
        self._count += len(lost)
        if lost and self._first is None:
            self._first = lost[0]
        self._report(records)

    def log_pass(self, each_once: bool) -> None:
        """Logs the losses of the pass that ended, as a warning if it should deliver each record once."""
        if self._first is None:
            return
        path, offset, why = self._first
        log.log(
            logging.WARNING if each_once else logging.INFO,
            "%d corrupt records were replaced with other records of this rank%s; the first corrupt record "
            "is at byte %d of %s: %s",
            self._count,
            ". Metrics of this pass omit the corrupt records and count the other records twice; to get an "
            "error instead, set on_corrupt='raise'" * each_once,
            offset, path, why,
        )  # fmt: skip
        self._count, self._first = 0, None
