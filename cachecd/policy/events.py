"""The events that the daemon reports to `Policy.handle`.

A start reports, in this order: Configured; GenerationFound and Listed for each directory, newest first;
LeaseFound; Measured; HoldersFound for open exclusions; Started. The result of each command is an event,
so a test can drive the policy without disk or network.
"""

from __future__ import annotations

from typing import NamedTuple

from cachecd.model import Cursor, Shape, ShardFacts, ShardFound, Skipped, StreamId
from cachecd.policy.commands import Command
from cachecd.policy.values import (
    NO_FIGURES,
    Figures,
    GenerationId,
    Head,
    Lease,
    Piece,
    Resume,
    Rules,
)


class Configured(NamedTuple):
    """The configuration, at a start and at each reload. `egress_limit`: total bytes that may be fetched,
    across restarts. `idle`: seconds without a lease after which fetching pauses. `block`: the block size
    of the file system. `boot` makes the names of leases unique across restarts. `offline`: nothing is
    fetched."""

    limit: int
    datasets: tuple[Rules, ...]
    egress_limit: int | None = None
    idle: float | None = None
    block: int = 4096
    boot: str = ""
    offline: bool = False


class GenerationFound(NamedTuple):
    """A directory that a start found or made. The generations of a dataset are reported newest first, and
    damaged generations last. `heads` has one entry for each stream, and one for the supplements, whose
    cursor has no meaning. `contradiction`: see WriteJudgement; None if the schema is not judged yet.
    `figures`: see KeepFigures, if the generation is configured. `damaged`: why generation.json cannot be
    read, or "". Shards of a damaged generation are never leased, and are the first to be retired for
    space."""

    generation: GenerationId
    split: str = ""
    shape: Shape | None = None
    heads: tuple[Head, ...] = ()
    shards: tuple[ShardFound, ...] = ()
    contradiction: str | None = None
    figures: Figures = NO_FIGURES
    damaged: str = ""


class LeaseFound(NamedTuple):
    """A manifest that a start found, after the generations. `held_by` and `epochs`: the ranks and epochs of
    MarkLease. `is_held`: a process locks it."""

    lease: Lease
    held_by: frozenset[int] = frozenset()
    epochs: frozenset[int] = frozenset()
    is_held: bool = False


class Started(NamedTuple):
    """The start has reported everything that it found."""


class Measured(NamedTuple):
    """Everything under cache.dir except shards occupies `other` bytes. It may grow by `slack` until the
    next measurement, and by `twice` while a file is replaced. The file system has room for `spare` bytes
    and `spare_files` files. `fetched`: total bytes fetched, across restarts. `refused`: why cache.dir
    cannot be used, or ""."""

    other: int
    slack: int = 0
    spare: float = float("inf")
    spare_files: float = float("inf")
    fetched: int = 0
    refused: str = ""
    twice: int = 0


class CommandDone(NamedTuple):
    """A command was carried out, durably."""

    command: Command


class DiskRefused(NamedTuple):
    """The disk refused a command, which had no effect. The policy repeats it. `gone`: cache.dir was moved
    or replaced."""

    command: Command
    reason: str
    gone: bool = False


class Tick(NamedTuple):
    """Half a second has passed."""


class Draining(NamedTuple):
    """The daemon ends. No more work begins."""


class Listed(NamedTuple):
    """The state of a generation's listing: the synced ends of its blocks, and the number and bytes of its
    units. `first`: the first listing is still running. `completed`: the number of complete listings.
    `reason`: why the listing fails, or "". `doubted`: the source seems to be another source, so nothing
    is fetched."""

    generation: GenerationId
    ends: tuple[int, ...]
    units: int
    size: int
    first: bool
    completed: int
    reason: str = ""
    doubted: bool = False


class CursorRead(NamedTuple):
    """The cursor before a shard, from its sidecar."""

    generation: GenerationId
    number: int
    before: Cursor


class HalfFull(NamedTuple):
    """The shard that a worker writes is half full."""

    stream: StreamId
    number: int


class ShardSealed(NamedTuple):
    """A shard is finished and synced, under its temporary name. If the cursor did not move and nothing
    was skipped, the worker found nothing to write, and there is no file. A supplement without a record
    has no file. `misfits`: the number of records that contradict the schema. `misfit`: the first such
    record, with the reason."""

    stream: StreamId
    number: int
    before: Cursor
    after: Cursor
    facts: ShardFacts
    skipped: tuple[Skipped, ...] = ()
    misfits: int = 0
    misfit: str = ""


class StreamFailed(NamedTuple):
    """A worker lost a stream and all of its unsealed shards, whose files are removed. Later commands to
    the worker about the stream have no effect. `cause`: "source" (the whole store), "disk", or "worker"
    (a lost process or a defect, while it worked on `unit`). `passing`: the unit may not be the cause;
    without a unit, the stream may not be the cause. Such a stream is opened again at once, until its unit
    is skipped."""

    stream: StreamId
    cause: str
    reason: str
    unit: int | None = None
    passing: bool = False


class StreamClosed(NamedTuple):
    """CloseStream was carried out."""

    stream: StreamId


class Published(NamedTuple):
    """Both files of a sealed shard have their final names, durably. They occupy `allocated` bytes."""

    stream: StreamId
    number: int
    allocated: int


class PublishRefused(NamedTuple):
    """A sealed shard cannot be published, because one of its records was excluded meanwhile."""

    stream: StreamId
    number: int


class MissingFound(NamedTuple):
    """Records that the shards of FindMissing lack, in ascending order. Omits excluded units, and units of
    which the shards have another version. `more`: more records are missing."""

    generation: GenerationId
    pieces: tuple[Piece, ...]
    more: bool = False


class DamageReported(NamedTuple):
    """A reader found a corrupt record in a shard. `request` waits for a reply, unless it is ""."""

    request: str
    generation: GenerationId
    number: int
    version: int


class ShardVerified(NamedTuple):
    """A shard was read. `sound`: it is not damaged."""

    generation: GenerationId
    number: int
    version: int
    sound: bool


class ShardLost(NamedTuple):
    """The sidecar of a version is damaged or missing."""

    generation: GenerationId
    number: int
    version: int


class Remade(NamedTuple):
    """The next version of a quarantined shard is published."""

    generation: GenerationId
    number: int
    facts: ShardFacts


class RemakeFailed(NamedTuple):
    """The next version could not be made, and its files are removed. The policy will try again."""

    generation: GenerationId
    number: int
    reason: str


class ExcludeAsked(NamedTuple):
    """A person excludes keys, or samples of one key, from a dataset."""

    request: str
    dataset: str
    keys: tuple[str, ...]
    samples: tuple[str, ...] = ()


class HoldersFound(NamedTuple):
    """All shards that have an excluded record. A start reports it for each unfinished exclusion."""

    exclusion: str
    holders: tuple[tuple[GenerationId, int, int], ...]  # generation, number, version


class AcquireAsked(NamedTuple):
    """A rank requests the file set of an epoch. `request` gets exactly one reply."""

    request: str
    dataset: str
    job: str
    epoch: int
    local_rank: int = 0
    local_world_size: int = 1
    resume: Resume | None = None


class RankHolds(NamedTuple):
    """A rank reports that it holds its lock on the lease's manifest."""

    request: str
    lease: str
    local_rank: int


class Delivered(NamedTuple):
    """A rank reports the fraction of its part of a lease that was delivered since its last report."""

    lease: str
    fraction: float


class LeaseUnheld(NamedTuple):
    """A probe found no lock on the lease's manifest."""

    lease: str


Event = (
    Configured | GenerationFound | LeaseFound | Started | Measured | CommandDone | DiskRefused
    | Tick | Draining | Listed | CursorRead | HalfFull | ShardSealed | StreamFailed | StreamClosed
    | Published | PublishRefused | MissingFound | DamageReported | ShardVerified | ShardLost | Remade
    | RemakeFailed | ExcludeAsked | HoldersFound | AcquireAsked | RankHolds | Delivered | LeaseUnheld
)  # fmt: skip
