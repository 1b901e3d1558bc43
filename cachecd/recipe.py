"""How a shard was made: which parts of which units it was assigned, so that it can be made again. Pure.

As stored and sent it takes about as many bytes a unit as its number has that are not zero.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import starmap

import numpy as np
from numpy.typing import NDArray

from cachecd.model import MAX_UNITS, UnitSlice
from cachecd.parts import Part
from cachecd.segments import Segments
from cachecd.unittext import encoded

Columns = NDArray[np.int64]  # [columns, units]


def packed(columns: Columns) -> bytes:
    """Byte by byte, so that those that are zero in all units take nothing."""
    planes = np.ascontiguousarray(columns.astype("<i8")).view(np.uint8)
    planes = planes.reshape(len(columns), -1, 8).transpose(0, 2, 1)
    return zlib.compress(planes.tobytes(), 1)


def unpacked(blob: bytes, columns: int) -> Columns:
    """What `packed` made of so many columns. ValueError or zlib.error if it did not."""
    # A shard has at most so many units: what is longer is none, however little it takes packed.
    most = columns * 8 * MAX_UNITS
    inflating = zlib.decompressobj()
    data = inflating.decompress(blob, most + 1)
    if not inflating.eof or len(data) > most:
        raise ValueError(f"more than {MAX_UNITS} units, or cut off")
    planes = np.frombuffer(data, np.uint8).reshape(columns, 8, -1)
    found: Columns = np.ascontiguousarray(planes.transpose(0, 2, 1)).view("<i8")[..., 0]
    return found


def packed_parts(parts: Sequence[Part]) -> bytes:
    """As the catalog stores an assignment."""
    return packed(np.array(parts, np.int64).reshape(-1, 4).T)


def unpacked_parts(blob: bytes) -> list[Part]:
    """What `packed_parts` made, or the catalog of version 4: that had JSON, which has no zeros."""
    if (text := zlib.decompress(blob)).startswith(b"[[") and b"\0" not in text:
        return [Part(*numbers) for numbers in json.loads(text)]
    return [Part(*numbers) for numbers in unpacked(blob, 4).T.tolist()]


def digest_of(units: Iterable[UnitSlice]) -> int:
    """Names these parts of units by what the listing says of them: keys and sizes, in this order."""
    digest = hashlib.sha256()
    for unit in units:
        numbers = unit.begin, unit.size, unit.ordinal, unit.stop
        digest.update(b"%b\xff%d %d %d %d\n" % (encoded(unit.key), *numbers))
    return int.from_bytes(digest.digest()[:8]) >> 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """One shard: what it was assigned, `records` and `data_bytes` that it came to, and the digest of its
    units. `units` are their parts as they are sent: what they are, `parts` says, which takes time."""

    number: int
    records: int
    data_bytes: int
    digest: int
    units: str

    @staticmethod
    def packed(parts: Sequence[Part], segments: Segments) -> str:
        """Parts for another daemon, whose listing of several sources may have fallen together otherwise:
        units are named by source and ordinal."""
        columns = np.array(parts, np.int64).reshape(-1, 4).T
        sources, ordinals = segments.places(columns[0])
        return base64.b64encode(packed(np.stack([sources, ordinals, *columns[1:]]))).decode()

    @property
    def text(self) -> str:
        return f"{self.number} {self.records} {self.data_bytes} {self.digest} {self.units}"

    @classmethod
    def of_text(cls, text: str) -> Recipe:
        """ValueError if it is no recipe; its units are not looked at."""
        try:
            number, records, data_bytes, digest, units = text.split(" ")
            return cls(int(number), int(records), int(data_bytes), int(digest), units)
        except ValueError as error:
            raise ValueError(f"no recipe of a shard: {error}") from error

    def parts(self, segments: Segments) -> tuple[Part, ...] | None:
        """By their numbers in this listing; None while some of its units are not listed. ValueError if
        there can be no such units."""
        try:
            sources, ordinals, *rest = unpacked(base64.b64decode(self.units), 5)
        except (ValueError, zlib.error) as error:
            raise ValueError(f"no recipe of a shard: {error}") from error
        if not len(sources) or min(ordinals.min(), *(column.min() for column in rest)) < 0:
            raise ValueError("no recipe of a shard: it has no units")
        numbers = np.zeros(len(sources), np.int64)
        for source in np.unique(sources).tolist():
            mine = sources == source
            if not 0 <= source < len(segments.lengths):
                raise ValueError(f"no recipe of a shard here: it has units of source {source}")
            if (ordinals[mine] >= segments.lengths[source]).any():
                return None
            numbers[mine] = segments.numbers(source, ordinals[mine].astype(np.uint64))
        return tuple(starmap(Part, np.stack([numbers, *rest]).T.tolist()))
