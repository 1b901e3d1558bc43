"""The values that all rooms share: units, and streams with their cursors.

Pure. A generation is S endless streams of records. Listing numbers the units; blocks are runs of unit
numbers. Place g in a generation counts over all blocks, in permuted order: the units of block b have the
places [ends[b - 1], ends[b]). Stream (g div stripe) mod S gets the unit at place g.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from cachecd_client.protocol import shard_number as shard_number
from cachecd_client.protocol import shard_place as shard_place

Place = tuple[int, int]  # (block, place among the stream's units of the block)
ShardVersion = tuple[int, int]  # (number, version)

# What follows a page of units in this pass: units that can be requested now, units once the listing has
# continued, or nothing.
More = Literal["listed", "wait", "end"]

_PACKED = (".gz", ".tgz", ".gzip", ".zlib", ".zz", ".z")
MOST_LANES = 16  # units whose records a shard mixes
# Characters of a packed cursor, at most.
LONGEST_CURSOR = 1024

# A text in quotes, or a number; or several of them with commas between.
_ONE = r"""(?<!\w)(?:b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*"|[+-]?\d[\w.+-]*)"""
_PARTICULARS = re.compile(f"{_ONE}(?:, {_ONE})*")

_HEAD = struct.Struct("<III")  # pass, block, place
_LANE = struct.Struct("<IIQQQIQ")  # the fields of Lane, in their order


def etag_hash(etag: str) -> int:
    """64 bits of an ETag. Sidecars keep these numbers: the function never changes."""
    digest = hashlib.blake2b(etag.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True, slots=True, order=True)
class StreamId:
    """Names one stream of a generation. Index 0 to S - 1: an endless stream; S: supplements; S + 1 + n: the
    stream that makes the damaged shard n again."""

    dataset: str
    generation: str
    index: int

    def __str__(self) -> str:
        return f"{self.dataset}/{self.generation}/{self.index}"


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """A unit in hand, opened at (block, place): the next record is `record`, at byte `offset` of the unit.

    `etag` is etag_hash of the ETag with which the unit was listed when the lane opened, `size` its listed
    size. Offset 0: the record is found by reading the unit from its start.
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
    """Where a stream is between two records.

    (block, place) is the place behind the last unit that was opened in this pass. A place behind the
    block's last unit means the next block's first unit. `lanes` are in the order of (block, place).
    """

    pass_: int = 0
    block: int = 0
    place: int = 0
    lanes: tuple[Lane, ...] = ()

    def next_pass(self) -> Cursor:
        """The start of the next pass."""
        return Cursor(self.pass_ + 1)

    def pack(self) -> str:
        """The cursor as ASCII text, for a sidecar; at most LONGEST_CURSOR characters for MOST_LANES lanes.

        ValueError if a field is outside its range.
        """
        try:
            packed = [_HEAD.pack(self.pass_, self.block, self.place)]
            packed += [
                _LANE.pack(
                    lane.block,
                    lane.place,
                    lane.unit,
                    lane.etag,
                    lane.size,
                    lane.record,
                    lane.offset,
                )
                for lane in self.lanes
            ]
        except struct.error as error:
            raise ValueError(f"a field of {self} is out of range: {error}") from None
        return base64.b64encode(b"".join(packed)).decode()

    @staticmethod
    def unpack(text: str) -> Cursor:
        """The cursor that was packed. ValueError for any other text."""
        packed = base64.b64decode(text, validate=True)
        if len(packed) < _HEAD.size or (len(packed) - _HEAD.size) % _LANE.size:
            raise ValueError(
                f"a packed cursor has {len(packed)} bytes: that is no whole number of lanes"
            )
        lanes = tuple(Lane(*fields) for fields in _LANE.iter_unpack(packed[_HEAD.size :]))
        places = [(lane.block, lane.place) for lane in lanes]
        if any(later <= earlier for earlier, later in pairwise(places)):
            raise ValueError("the lanes of a packed cursor are not in order")
        pass_, block, place = _HEAD.unpack_from(packed)
        return Cursor(pass_, block, place, lanes)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit as it is listed: `size` bytes of the object `key`, from its byte `begin` on. `label`: its
    class, if a table gives one.

    Or a part of the unit: from `record` on, up to the record `stop` (0: to its end). `offset` is the
    format's hint for the byte at which that record begins (0: unknown, or the start). `excluded`: samples
    that are not cached.
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
        """Whether the object's name says that all of it is compressed, so that reading must begin at its
        start."""
        return self.key.lower().endswith(_PACKED)


SAMPLE = "__key__"
"""The feature that names a sample of a tar."""

Excluded = Mapping[str, frozenset[str]]
"""Keys of objects, each with its excluded samples; none: the whole object is excluded."""


def sample_name(key: object) -> str:
    """Returns the value of the feature SAMPLE as people write it; "" if it is no name."""
    return key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else ""


def less_excluded(unit: Unit | None, excluded: Excluded) -> Unit | None:
    """Returns the unit with its excluded samples; None if all of it is excluded."""
    if unit is None or (samples := excluded.get(unit.key)) is None:
        return unit
    return replace(unit, excluded=tuple(sorted(samples))) if samples else None


@dataclass(frozen=True, slots=True)
class Skipped:
    """From record `record` on, this version of the unit could not be used. `passing`: the reason may pass
    without a change of the object."""

    unit: int
    key: str
    etag: int
    record: int
    reason: str
    passing: bool = False


@dataclass(frozen=True, slots=True)
class SkippedRecords:
    """Records that could not be used, for reasons of one kind: the first reason, their number, and some of
    them, as "OBJECT: SAMPLE"."""

    reason: str
    records: int
    examples: tuple[str, ...]


def kind_of(reason: str) -> str:
    """Returns the reason without names, numbers and bytes: reasons that differ only in those are of one
    kind."""
    return _PARTICULARS.sub("?", reason)


class ShardFacts(NamedTuple):
    """One version of a shard on disk. `allocated`: bytes on disk with the sidecar. `ended`: how many units
    end here. `digest`: the sum of the hashes of its records. `passed`: how many records between its cursors
    were passed over, because they could not be used."""

    allocated: int
    records: int
    data_bytes: int
    ended: int = 0
    digest: int = 0
    version: int = 0
    passed: int = 0


class ShardFound(NamedTuple):
    """The current version of a shard number that has files at a start.

    `status`: "live"; "old" (the number is marked as retired); "damaged" or "excluded" (the shard must be
    made again); "lost" (the sidecar is missing or damaged, so that only `allocated` and `version` of the
    facts are known). `elders`: (version, allocated bytes) of older versions that leases name.
    """

    number: int
    facts: ShardFacts
    status: str = "live"
    elders: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Condemned:
    """A unit that its stream skips without a try: workers died with it in hand."""

    unit: int
    reason: str
    passing: bool


@dataclass(frozen=True, slots=True)
class Shape:
    """The fixed values of generation.json: `streams` is S, `stripe` the units that one stream gets in a
    row, `lanes` the units that a stream has in hand, `capacity` the bytes of a shard with its sidecar.
    `ends` are the ends of the blocks: block b has the places [ends[b - 1], ends[b])."""

    streams: int
    stripe: int
    lanes: int
    capacity: int
    seed: int

    def number(self, stream: int, j: int) -> int:
        """The number of a stream's shard j. Stream S makes supplements."""
        return shard_number(self.streams, stream, j)

    def split(self, number: int) -> tuple[int, int]:
        """Returns (stream, j) of a shard's number."""
        return shard_place(self.streams, number)

    def units_in(self, stream: int, block: int, ends: Sequence[int]) -> int:
        """How many units of a block belong to a stream."""
        return self._units_below(stream, ends[block]) - self._units_below(
            stream, _begin(block, ends)
        )

    def units_of(self, stream: int, ends: Sequence[int]) -> int:
        """How many units of all blocks belong to a stream."""
        return self._units_below(stream, ends[-1]) if ends else 0

    def g_of(self, stream: int, block: int, place: int, ends: Sequence[int]) -> int:
        """The place g of a stream's unit number `place` of a block. IndexError if the block has fewer."""
        if not 0 <= place < self.units_in(stream, block, ends):
            raise IndexError(f"stream {stream} has no place {place} in block {block}")
        rounds, rest = divmod(self._units_below(stream, _begin(block, ends)) + place, self.stripe)
        return (rounds * self.streams + stream) * self.stripe + rest

    def _units_below(self, stream: int, g: int) -> int:
        """How many of the places [0, g) belong to a stream."""
        rounds, rest = divmod(g, self.stripe * self.streams)
        return rounds * self.stripe + min(max(rest - stream * self.stripe, 0), self.stripe)


def _begin(block: int, ends: Sequence[int]) -> int:
    return ends[block - 1] if block else 0


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One unit as it is listed: an object, `key` relative to the source's URL, or `size` bytes of it from
    `begin` on. Key and `begin` identify the unit. `label`: the name of its class, if a list of units gives
    it, else ""."""

    key: str
    size: int
    etag: str = ""
    begin: int = 0
    label: str = ""


def encoded(text: str) -> bytes:
    """Returns a key as bytes. Keys that are not Unicode have lone surrogates as text."""
    return text.encode("utf-8", "surrogatepass")


MISFIT = (
    "record does not fit the schema"  # how the reason begins of one whose records are of another
)
