"""The daemon's values: plain, frozen, without behaviour that needs a disk, a clock or a socket."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

# Manifests, sidecars and the catalog keep cursors, and hold numbers below 2**63.
MOST_CURSOR = 1 << 62
# Bounds what one assignment takes in the catalog and on a pipe (about 15 kB and 400 kB), and how long
# planning it keeps the event loop (50 ms), however small the objects are.
MAX_UNITS = 4096
# Units whose records a shard mixes, where a unit is read as a stream.
LANES = 16
_PACKED = (".gz", ".tgz", ".gzip", ".zlib", ".zz", ".z")


@dataclass(frozen=True, slots=True, order=True)
class ShardId:
    """One shard; numbers count up from 1 within a dataset and are never used twice."""

    dataset: str
    number: int

    def __str__(self) -> str:
        return f"{self.dataset}/{self.number}"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One unit as it is listed: an object, `key` relative to the source's URL, or `size` bytes of it
    from `begin` on. Key and `begin` name it.

    `label` is the name of its class, where a list of units gives it; "" where not.
    """

    key: str
    size: int
    etag: str = ""
    begin: int = 0
    label: str = ""


def encoded(text: str) -> bytes:
    """A key in bytes. A name that is not Unicode comes as lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


UnitName = tuple[str, int]
EXCLUDED = "excluded by hand"  # why a unit is set aside that a person has taken out
MISFIT = (
    "record does not fit the schema"  # how the reason begins of one whose records are of another
)


@dataclass(frozen=True, slots=True)
class UnitSlice:
    """A unit, or a part of one: from record `ordinal` on, up to record `stop` (0: to its end).

    The unit is `size` bytes of the object `key`, from its byte `begin` on. `offset` is the source's own
    hint where in the unit that record begins (0: unknown or start).
    """

    unit: int
    key: str
    size: int
    etag: str = ""
    ordinal: int = 0
    offset: int = 0
    stop: int = 0
    begin: int = 0
    label: str = ""

    @property
    def name(self) -> UnitName:
        """Its key and where in the object it begins: the same in every listing."""
        return self.key, self.begin

    @property
    def seems_packed(self) -> bool:
        """Whether its name says that it is compressed as a whole, and so read from its start alone."""
        return self.key.lower().endswith(_PACKED)


@dataclass(frozen=True, slots=True)
class Held:
    """What a shard holds: records of `units`, and of those that it does not hold whole, `parts`."""

    units: Sequence[int] = ()
    parts: tuple[UnitSlice, ...] = ()


@dataclass(frozen=True, slots=True)
class SetAside:
    """A unit that cannot be fetched or decoded, with the reason a person can act on.

    `passing`: the reason may pass without the object changing (a refusal, a server that failed).
    """

    unit: int
    key: str
    reason: str
    passing: bool = False


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one shard is to hold, fixed before anything is fetched; redone, it is the same."""

    shard: ShardId
    generation: str
    units: tuple[UnitSlice, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a worker made of an assignment: a sealed temporary file, or nothing if `records` is 0.

    `remainder` is what did not fit, `set_aside` what failed for good.
    `data_bytes` and `sidecar_bytes` are lengths, `allocated` is what both files occupy on disk.
    """

    records: int
    data_bytes: int
    sidecar_bytes: int
    allocated: int
    fetched_bytes: int
    seconds: float
    remainder: tuple[UnitSlice, ...] = ()
    set_aside: tuple[SetAside, ...] = ()


@dataclass(frozen=True, slots=True)
class Shard:
    """A sealed shard; `digest` names the units that it was made of, 0 if they are not known."""

    id: ShardId
    generation: str
    records: int
    data_bytes: int
    allocated: int
    digest: int = 0


# Inclusive ranges of shard numbers, ascending: ((1, 3), (7, 7)) is 1, 2, 3, 7.
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """What a resumed run had on lease: the set named `fingerprint`, "" if it has read all of the set, and
    where the walk named `walk` was in its source."""

    generation: str
    shards: Ranges
    fingerprint: str = ""
    walk: str = ""
    cursor: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """The file set a job holds for one epoch. `cursor`: where the plan's walk, named `walk`, was
    when it was granted."""

    id: str
    dataset: str
    job: str
    epoch: int
    generation: str
    shards: Ranges
    num_records: int
    num_bytes: int
    seed: int
    pinned: bool
    fingerprint: str
    walk: str = ""
    cursor: int = 0

    def names(self, number: int) -> bool:
        """Whether the lease names this shard of its dataset."""
        at = bisect_right(self.shards, (number, sys.maxsize)) - 1
        return at >= 0 and self.shards[at][0] <= number <= self.shards[at][1]
