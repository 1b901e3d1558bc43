"""The values that all rooms share: units, and streams with their cursors. Pure.

A generation is S endless streams of records. A listing numbers the units. A block is a range of unit
numbers, which is permuted. Place g counts the units of a generation in permuted order: the units of block b
have the places [ends[b - 1], ends[b]). The streams take turns, and
each gets `stripe` units in its turn: stream (g div stripe) mod S gets the unit at place g.
"""

from __future__ import annotations

import binascii
import hashlib
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from cachecd_client.protocol import shard_number as shard_number
from cachecd_client.protocol import shard_place as shard_place

Place = tuple[int, int]  # (block, place among the stream's units of the block)
ShardVersion = tuple[int, int]  # (number, version)

# What follows a page of units in this pass: units that are listed, units that will be listed later, or
# nothing.
More = Literal["listed", "wait", "end"]

_PACKED = (".gz", ".tgz", ".gzip", ".zlib", ".zz", ".z", ".zst", ".tzst", ".zstd")
MOST_LANES = 16  # units whose records a shard mixes
LONGEST_CURSOR = 1024  # characters of a packed cursor

# A quoted text or a number, or several of them, separated by commas.
_ONE = r"""(?<!\w)(?:b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*"|[+-]?\d[\w.+-]*)"""
_PARTICULARS = re.compile(f"{_ONE}(?:, {_ONE})*")

_HEAD = struct.Struct("<III")  # pass, block, place
_LANE = struct.Struct("<IIQQQIQ")  # the fields of Lane, in their order


def etag_hash(etag: str) -> int:
    """Returns a 64-bit hash of an ETag. Sidecars contain these hashes, so the function must never
    change."""
    digest = hashlib.blake2b(etag.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True, slots=True, order=True)
class StreamId:
    """Names one stream of a generation. Index 0 to S - 1: an endless stream. S: the supplements. S + 1 +
    n: the stream that rebuilds the damaged shard n."""

    dataset: str
    generation: str
    index: int

    def __str__(self) -> str:
        return f"{self.dataset}/{self.generation}/{self.index}"


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """An open unit, opened at (block, place). The next record is `record`, at byte `offset` of the unit.

    `etag` (as etag_hash) and `size` are the listed values when the lane was opened. If `offset` is 0, the
    unit must be read from its start to find the record.
    """

    block: int
    place: int
    unit: int
    etag: int
    size: int
    record: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of a stream between two records.

    (block, place) is the place after the last unit that was opened in this pass. A place after the block's
    last unit means the next block's first unit. `lanes` are in the order of (block, place).
    """

    pass_: int = 0
    block: int = 0
    place: int = 0
    lanes: tuple[Lane, ...] = ()

    def next_pass(self) -> Cursor:
        """Returns the cursor at the start of the next pass."""
        return Cursor(self.pass_ + 1)

    def pack(self) -> str:
        """Returns the cursor as ASCII text, at most LONGEST_CURSOR characters with MOST_LANES lanes.

        ValueError if a field is outside its range.
        """
        try:
            packed = [_HEAD.pack(self.pass_, self.block, self.place)]
            packed += [_LANE.pack(*astuple(lane)) for lane in self.lanes]
        except struct.error as error:
            raise ValueError(f"a field of {self} is out of range: {error}") from None
        return binascii.b2a_base64(b"".join(packed), newline=False).decode()

    @staticmethod
    def unpack(text: str) -> Cursor:
        """Restores a packed cursor. ValueError for any other text."""
        packed = binascii.a2b_base64(text, strict_mode=True)
        if len(packed) < _HEAD.size or (len(packed) - _HEAD.size) % _LANE.size:
            raise ValueError(
                f"a packed cursor has {len(packed)} bytes, expected a whole number of lanes"
            )
        lanes = tuple(Lane(*fields) for fields in _LANE.iter_unpack(packed[_HEAD.size :]))
        if any((b.block, b.place) <= (a.block, a.place) for a, b in pairwise(lanes)):
            raise ValueError("the lanes of a packed cursor are not in order")
        pass_, block, place = _HEAD.unpack_from(packed)
        return Cursor(pass_, block, place, lanes)


@dataclass(frozen=True, slots=True)
class Unit:
    """A listed unit: `size` bytes of the object `key`, from byte `begin` on. `label`: the class, if a
    table gives it.

    `record` and `stop` select the records [record, stop) of the unit, or if `stop` is 0, all from
    `record` on. `offset`: the byte at which `record` begins, as a hint for the format (0: unknown, or the
    start). `excluded`: samples that are not cached.
    """

    number: int
    key: str
    size: int
    etag: str = ""
    begin: int = 0
    label: str = ""
    record: int = 0
    offset: int = 0
    stop: int = 0
    excluded: tuple[str, ...] = ()

    @property
    def seems_packed(self) -> bool:
        """Whether the object's name shows that the whole object is compressed, so that reading must begin
        at its start."""
        return self.key.lower().endswith(_PACKED)


SAMPLE = "__key__"
"""The feature that names a sample of a tar."""

Excluded = Mapping[str, frozenset[str]]
"""Key -> excluded samples. An empty set excludes the whole object."""


def sample_name(key: object) -> str:
    """Returns the value of the feature SAMPLE as text, or "" if it is not bytes."""
    return key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else ""


def less_excluded(unit: Unit | None, excluded: Excluded) -> Unit | None:
    """Adds the excluded samples to a unit. Returns None if the whole unit is excluded."""
    if unit is None or (samples := excluded.get(unit.key)) is None:
        return unit
    return replace(unit, excluded=tuple(sorted(samples))) if samples else None


@dataclass(frozen=True, slots=True)
class Skipped:
    """This version of the unit could not be used from record `record` on. `passing`: a retry may succeed,
    even if the object does not change."""

    unit: int
    key: str
    etag: int
    record: int
    reason: str
    passing: bool = False


@dataclass(frozen=True, slots=True)
class SkippedRecords:
    """Records that could not be used, for reasons of one kind. `reason`: the first reason. `records`: the
    number of records. `examples`: some of the records, as "OBJECT: SAMPLE"."""

    reason: str
    records: int
    examples: tuple[str, ...]


def kind_of(reason: str) -> str:
    """Replaces quoted texts and numbers in a reason. Reasons of one kind differ only in these."""
    return _PARTICULARS.sub("?", reason)


class ShardFacts(NamedTuple):
    """One version of a shard on disk. `allocated`: bytes on disk, with the sidecar. `ended`: the number of
    units that end in the shard. `digest`: the sum of the hashes of its records. `passed`: the number of
    records between its cursors that could not be used."""

    allocated: int
    records: int
    data_bytes: int
    ended: int = 0
    digest: int = 0
    version: int = 0
    passed: int = 0


class ShardFound(NamedTuple):
    """The current version of a shard number that has files at a start.

    `status` is "live", "old" (marked as retired), "damaged" or "excluded" (the shard must be rebuilt), or
    "lost". The sidecar of a lost shard is missing or damaged, so only `allocated` and `version` are
    known. `elders`: (version, allocated bytes) of older versions that leases name.
    """

    number: int
    facts: ShardFacts
    status: str = "live"
    elders: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Condemned:
    """A unit that its stream skips without a try, because workers died while they processed it."""

    unit: int
    reason: str
    passing: bool


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """The work on one stage of ingest, added up over processes. `wall_s` includes waiting. A stage that is
    timed for some units only is scaled to all of them. `records`: the records that passed the stage."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    records: int = 0

    def plus(self, other: StageSeconds) -> StageSeconds:
        """Returns the sum of both."""
        return StageSeconds(
            self.cpu_s + other.cpu_s, self.wall_s + other.wall_s, self.records + other.records
        )


def in_order(stages: Mapping[str, StageSeconds]) -> dict[str, StageSeconds]:
    """Returns the stages in the order of the work: the steps of a transform are between decode and
    encode, and keep their order."""
    before, after = ("list", "fetch", "decode"), ("encode", "write", "sync")
    steps = [name for name in stages if name not in (*before, *after)]
    return {name: stages[name] for name in (*before, *steps, *after) if name in stages}


@dataclass(frozen=True, slots=True)
class Shape:
    """The fixed values of generation.json. `streams`: S. `stripe`: the number of consecutive units that one
    stream gets. `lanes`: the number of units that a stream opens at a time. `capacity`: the bytes of a
    shard with its sidecar. In all methods, block b has the places [ends[b - 1], ends[b])."""

    streams: int
    stripe: int
    lanes: int
    capacity: int
    seed: int

    def number(self, stream: int, j: int) -> int:
        """Returns the number of a stream's shard j. Stream S makes supplements."""
        return shard_number(self.streams, stream, j)

    def split(self, number: int) -> tuple[int, int]:
        """Returns (stream, j) of a shard's number."""
        return shard_place(self.streams, number)

    def units_in(self, stream: int, block: int, ends: Sequence[int]) -> int:
        """Returns the number of units of a block that belong to a stream."""
        return self.units_of(stream, ends[: block + 1]) - self.units_of(stream, ends[:block])

    def units_of(self, stream: int, ends: Sequence[int]) -> int:
        """Returns the number of units of all blocks that belong to a stream."""
        return self._units_below(stream, ends[-1]) if ends else 0

    def g_of(self, stream: int, block: int, place: int, ends: Sequence[int]) -> int:
        """Returns the place g of a stream's unit `place` in a block. IndexError if there is no such
        unit."""
        if not 0 <= place < self.units_in(stream, block, ends):
            raise IndexError(f"stream {stream} has no place {place} in block {block}")
        rounds, rest = divmod(self.units_of(stream, ends[:block]) + place, self.stripe)
        return (rounds * self.streams + stream) * self.stripe + rest

    def _units_below(self, stream: int, g: int) -> int:
        """Returns how many of the places [0, g) belong to a stream."""
        rounds, rest = divmod(g, self.stripe * self.streams)
        return rounds * self.stripe + min(max(rest - stream * self.stripe, 0), self.stripe)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A unit in a listing: an object, or `size` bytes of an object from byte `begin` on. `key` is
    relative to the source's URL. `key` and `begin` identify the unit. `label`: the name of the class, if
    a table or a reader gives it, else ""."""

    key: str
    size: int
    etag: str = ""
    begin: int = 0
    label: str = ""


def encoded(text: str) -> bytes:
    """Returns a key as bytes. The text of a key that is not Unicode has lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


# Begins the reason of a unit whose records have another schema.
MISFIT = "record does not fit the schema"
