"""Parts of units: as the catalog stores them, which a shard holds, and which no shard holds. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachecd.model import Outcome, UnitSlice
from cachecd.unittext import encoded


class Part(NamedTuple):
    """A UnitSlice without what the listing says of its unit; how slices are stored."""

    unit: int
    ordinal: int
    offset: int
    stop: int = 0


def part_of(unit: UnitSlice) -> Part:
    """What is stored of a slice."""
    return Part(unit.unit, unit.ordinal, unit.offset, unit.stop)


def slices_of(
    stored: Iterable[Sequence[int]], unit: Callable[[int], UnitSlice]
) -> tuple[UnitSlice, ...]:
    """The slices that were stored; `unit` is the listing's. What it raises passes through."""
    return tuple(
        dataclasses.replace(
            unit(part.unit), ordinal=part.ordinal, offset=part.offset, stop=part.stop
        )
        for part in (Part(*numbers) for numbers in stored)
    )


def packed(parts: Sequence[Part]) -> bytes:
    """As the catalog stores an assignment: byte by byte, so that bytes that are zero in all parts take no
    room."""
    columns = np.array(parts, "<i8").reshape(-1, 4).T
    planes = np.ascontiguousarray(columns).view(np.uint8).reshape(4, -1, 8).transpose(0, 2, 1)
    return zlib.compress(planes.tobytes(), 1)


def unpacked(blob: bytes) -> list[Part]:
    """The inverse of `packed`."""
    planes = np.frombuffer(zlib.decompress(blob), np.uint8).reshape(4, 8, -1)
    columns = np.ascontiguousarray(planes.transpose(0, 2, 1)).view("<i8")[..., 0]
    return [Part(*numbers) for numbers in columns.T.tolist()]


def digest_of(units: Iterable[UnitSlice]) -> int:
    """Names these parts of units by their keys and sizes in the listing, in this order."""
    digest = hashlib.sha256()
    for unit in units:
        numbers = unit.begin, unit.size, unit.ordinal, unit.stop
        digest.update(b"%b\xff%d %d %d %d\n" % (encoded(unit.key), *numbers))
    return int.from_bytes(digest.digest()[:8]) >> 1


def parts_made(
    assigned: Iterable[UnitSlice], outcome: Outcome, held: Collection[int]
) -> tuple[Part, ...]:
    """Of a shard that holds records of the units `held`: the parts of those that it does not hold
    whole."""
    rest = {unit.unit: unit.ordinal for unit in outcome.remainder}
    of = (u for u in assigned if u.ordinal or u.stop or u.unit in rest)
    return tuple(
        Part(u.unit, u.ordinal, u.offset, rest.get(u.unit, u.stop)) for u in of if u.unit in held
    )


def parts_written(
    units: NDArray[np.uint64],
    firsts: NDArray[np.integer[Any]],
    rest: Iterable[Sequence[int]],
    stops: Mapping[int, int],
) -> tuple[Part, ...]:
    """The same, as the shard's sidecar tells it: distinct units with their first ordinals in it, what is
    said to be the `rest` of them, and where parts that were asked for ended."""
    ends = {**stops, **{unit: ordinal for unit, ordinal, *_ in rest}}
    # Nearly all units are whole, and a start may read the sidecars of millions of them.
    some = (firsts > 0) | np.isin(units, np.fromiter(ends, np.uint64, len(ends)))
    found = zip(units[some].tolist(), firsts[some].tolist(), strict=True)
    parts = (Part(unit, first, 0, ends.get(unit, 0)) for unit, first in found)
    return tuple(part for part in parts if part.ordinal or part.stop)


def gaps(parts: Iterable[Part]) -> list[Part]:
    """What is between, before and behind these parts, of each unit of which there is one."""
    found: list[Part] = []
    for unit, its in groupby(sorted(parts), key=lambda part: part.unit):
        done = 0
        for part in its:
            if part.ordinal > done:
                found.append(Part(unit, done, 0, part.ordinal))
            if not part.stop:
                break
            done = max(done, part.stop)
        else:
            found.append(Part(unit, done, 0))
    return found
