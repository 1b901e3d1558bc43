"""What can happen to the cache, and what the policy can ask for: the vocabulary of `state.handle`.

Every command that does something in the world comes back as an event, so the whole policy can be
driven by a test that has no disk, no network and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cachecd.model import (
    Assignment,
    Held,
    Lease,
    Outcome,
    Ranges,
    Resume,
    SetAside,
    Shard,
    ShardId,
    UnitName,
    UnitSlice,
)
from cachecd.parts import Part
from cachecd.unitcount import Units

# --- events: what happened --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AcquireAsked:
    """A rank asks for the file set of an epoch. `request` is answered by exactly one reply."""

    request: str
    dataset: str
    job: str
    epoch: int
    local_rank: int = 0
    local_world_size: int = 1
    resume: Resume | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """Trainers were given records of a lease: of each of these ranges of its shards so many thousandths."""

    request: str
    lease: str
    shards: Ranges
    shares: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankHolds:
    """A rank says that it holds its lock on the lease's manifest."""

    request: str
    lease: str
    local_rank: int


@dataclass(frozen=True, slots=True)
class LeaseUnheld:
    """A probe found no lock on the lease's manifest."""

    lease: str


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The lease's manifest has been deleted, under the write lock."""

    lease: str


@dataclass(frozen=True, slots=True)
class Listed:
    """The listing of a dataset's source has gained units, or has ended (`complete`); the plan's unit table
    has the units. `fresh`: the store has just answered."""

    dataset: str
    complete: bool
    fresh: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Relisted:
    """The whole listing of a source that was listed before: units that are `gone` since, and those that
    had been and are `back`."""

    dataset: str
    gone: Units
    back: Units


@dataclass(frozen=True, slots=True)
class ListingStopped:
    """A dataset's source cannot be listed now; `reason` is for people. `stuck`: not
    just now, so that what is listed is to be taken for all there is till then. `down`: the store does not
    answer, or refuses, so that reading it may fail as well. `doubted`: the store seems to be another than
    the one that was listed before, so that nothing is read until a listing says otherwise."""

    dataset: str
    reason: str
    stuck: bool = False
    down: bool = False
    doubted: bool = False


@dataclass(frozen=True, slots=True)
class SchemaFound:
    """The dataset's schema is known: more than one of its shards may be made at once."""

    dataset: str


@dataclass(frozen=True, slots=True)
class ShardProgressed:
    """This much has been fetched for a shard that is being made."""

    shard: ShardId
    fetched_bytes: int


@dataclass(frozen=True, slots=True)
class ShardMade:
    """A worker has done an assignment; its temporary file, if it has records, is sealed."""

    shard: ShardId
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ShardPublished:
    """The shard has its name and its directory is synced; `units` are those it holds records of."""

    shard: Shard
    units: Sequence[int]


@dataclass(frozen=True, slots=True)
class ShardFailed:
    """A shard could not be made or published, and nothing of it is left on disk.

    `cause`: "source" (the store as a whole), "disk", or "worker" (a lost process or a defect, while
    `unit` was worked on). `passing`: it was killed from outside, as where the machine had no memory left.
    """

    shard: ShardId
    cause: str
    reason: str
    unit: int | None = None
    passing: bool = False


@dataclass(frozen=True, slots=True)
class ShardUnlinked:
    """Both files and the row of the shard are gone; it held records of `units`."""

    shard: ShardId
    units: Sequence[int]


@dataclass(frozen=True, slots=True)
class CorruptReported:
    """A reader met a corrupt record in this shard."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class ShardVerified:
    """The daemon read a reported shard itself: `sound`, or really corrupt; it holds `held`."""

    shard: ShardId
    sound: bool
    held: Held


@dataclass(frozen=True, slots=True)
class UnitsExcluded:
    """A person takes these units out of the dataset: they are never fetched again, whatever is listed."""

    dataset: str
    units: tuple[UnitSlice, ...]


@dataclass(frozen=True, slots=True)
class HoldersFound:
    """These shards hold records of units that were excluded: no later lease may name them."""

    dataset: str
    numbers: Sequence[int]


@dataclass(frozen=True, slots=True)
class ExclusionsKnown:
    """What holds units that were excluded before this start was named, all of it: leases may be granted."""

    dataset: str


@dataclass(frozen=True, slots=True)
class MetadataMeasured:
    """What everything under cache.dir but shards and temporary files occupies, in bytes.

    `spare` is what the file system has free, less what the configuration leaves to others;
    `spare_shards`, for how many more shards it has inodes. `coming` is about to be written.
    """

    allocated: int
    spare: float = float("inf")
    spare_shards: float = float("inf")
    coming: int = 0


@dataclass(frozen=True, slots=True)
class DiskChecked:
    """What lies under cache.dir can be worked on, or nothing is started: `refused` tells people why."""

    refused: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Draining:
    """The daemon is going down: no shard is started any more."""


Event = (
    AcquireAsked
    | RankHolds
    | Delivered
    | LeaseUnheld
    | LeaseEnded
    | Listed
    | Relisted
    | ListingStopped
    | SchemaFound
    | ShardProgressed
    | ShardMade
    | ShardPublished
    | ShardFailed
    | ShardUnlinked
    | CorruptReported
    | ShardVerified
    | UnitsExcluded
    | HoldersFound
    | ExclusionsKnown
    | MetadataMeasured
    | DiskChecked
    | Tick
    | Draining
)

# --- commands: what is to be done -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartShard:
    """Make this shard, within the room reserved for it; the plan has moved on, save it first."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class PublishShard:
    """Give the sealed temporary file its name and its row."""

    shard: ShardId
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class SavePlan:
    """The dataset's plan has moved on: save it together with what moved it, in one transaction.

    `done` is an assignment that is no longer open, `shard` what became of it with the units it holds,
    of some only `parts`. `set_aside` are the units given up, `again` those that were and are tried
    again; no later lease may name the shard `barred`; `removed` has no files any more. `excluded` are
    names of units never to be fetched again.
    """

    dataset: str
    done: int | None = None
    shard: Shard | None = None
    units: Sequence[int] = ()
    parts: tuple[Part, ...] = ()
    set_aside: tuple[SetAside, ...] = ()
    again: tuple[int, ...] = ()
    barred: int | None = None
    excluded: tuple[UnitName, ...] = ()
    removed: int | None = None


@dataclass(frozen=True, slots=True)
class MarkShards:
    """Note in the catalog that these shards are retired: no later lease may name them."""

    dataset: str
    numbers: Sequence[int]


@dataclass(frozen=True, slots=True)
class UnlinkShard:
    """Remove both files: no lease names the shard."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class VerifyShard:
    """Read the shard and say whether it is sound, and what it holds."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Write the lease's manifest; the grant that follows in the same list depends on it."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class EndLease:
    """Delete the manifest if the write lock can be had; else leave it."""

    lease: str


@dataclass(frozen=True, slots=True)
class ReplyGranted:
    """Tell the rank which manifest to lock, and what share of the source was handed out so far."""

    request: str
    lease: str
    coverage: float


@dataclass(frozen=True, slots=True)
class ReplyDone:
    """Tell the rank that this is noted."""

    request: str


@dataclass(frozen=True, slots=True)
class ReplyWaiting:
    """Tell the rank to ask again, and how far the cache is: bytes, and bytes per second."""

    request: str
    have_bytes: int
    want_bytes: int
    bytes_per_second: float
    reason: str


@dataclass(frozen=True, slots=True)
class ReplyRefused:
    """Tell the rank that this can never be met."""

    request: str
    code: str
    message: str


Command = (
    StartShard
    | PublishShard
    | SavePlan
    | MarkShards
    | UnlinkShard
    | VerifyShard
    | WriteManifest
    | EndLease
    | ReplyGranted
    | ReplyDone
    | ReplyWaiting
    | ReplyRefused
)
