"""A Parquet object's footer: which row groups there are, and where their column chunks lie.

All of it is checked here, before anything is read or allocated by it. A footer of 8 columns and 4 row
groups takes 1 ms, a megabyte a quarter of a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from typing_extensions import Buffer

from cachecd.errors import UnitError
from cachecd.sampler.sources.parquet.thrift import I64, TEXT, Reader, list_of, struct

# Read first of every object: the footers of most, in one request.
TAIL = 64 << 10
# Footers of a thousand columns and a hundred row groups have some 10 MiB.
_LONGEST = 32 << 20
_MOST_GROUPS = 1 << 16
_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_END = 8  # bytes behind the footer: its length and the magic number

# Names as in the format's parquet.thrift.
_STATISTICS = struct({3: I64})  # null_count
_META_DATA = struct({5: I64, 6: I64, 7: I64, 9: I64, 11: I64, 12: _STATISTICS})
_COLUMN_CHUNK = struct({1: TEXT, 3: _META_DATA, 8: struct({})})
_ROW_GROUP = struct({1: list_of(_COLUMN_CHUNK), 3: I64})
_FILE = {4: list_of(_ROW_GROUP)}


@dataclass(frozen=True, slots=True)
class Chunk:
    """One column of a row group, in bytes [start, stop): `values` counts nulls and empty lists too,
    `nulls` is how many there are of both, as far as anybody counted; `size` is that of the pages
    uncompressed."""

    start: int
    stop: int
    values: int
    nulls: int
    size: int


@dataclass(frozen=True, slots=True)
class Group:
    """A row group that has rows: `index` counts those without; `size` sums its compressed bytes."""

    index: int
    rows: int
    begin: int
    size: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of an object of `object_size` bytes; `raw` is as it is in the object, with what is
    behind it."""

    raw: bytes
    object_size: int
    groups: tuple[Group, ...]


async def read_footer(
    tail: Buffer, size: int, read: Callable[[int, int], Awaitable[Buffer]]
) -> Footer:
    """The footer of an object of `size` bytes that ends with `tail`; `read` brings what is before that,
    if it is needed. UnitError if the object is no Parquet file, or its footer cannot be true."""
    end = bytes(memoryview(tail)[-_END:])
    if size < 2 * len(_MAGIC) + 4 or end[4:] not in (_MAGIC, _ENCRYPTED):
        raise UnitError(
            f"not a Parquet file: its {size} bytes end with {end[-4:]!r}, expected {_MAGIC!r} (truncated?)"
            if size
            else "not a Parquet file: it is empty"
        )
    if end[4:] == _ENCRYPTED:
        raise UnitError("an encrypted Parquet file: its footer cannot be read")
    length = int.from_bytes(end[:4], "little")
    if length > size - _END - len(_MAGIC):
        raise UnitError(
            f"its Parquet footer claims {length} bytes, of an object of {size}: it is damaged"
        )
    if length > _LONGEST:
        raise UnitError(f"its Parquet footer has {length} bytes, more than {_LONGEST} are not read")
    have = memoryview(tail).cast("B")
    missing = length + _END - len(have)
    if missing > 0:
        more = await read(size - _END - length, size - len(have))
        raw = b"".join((more, have))
    else:
        raw = bytes(have[-missing:])
    try:
        groups = Reader(raw[:-_END]).struct(_FILE).get(4, [])
    except ValueError as error:
        raise UnitError(f"its Parquet footer cannot be read: {error}") from error
    except IndexError as error:
        raise UnitError("its Parquet footer cannot be read: it ends too early") from error
    return Footer(raw, size, _groups(groups, size - len(raw)))


def _groups(found: list[dict[int, Any]], end: int) -> tuple[Group, ...]:
    if len(found) > _MOST_GROUPS:
        raise UnitError(f"it has {len(found)} row groups, expected at most {_MOST_GROUPS}")
    groups = []
    for index, about in enumerate(found):
        rows = about.get(3, -1)
        if rows == 0:
            continue
        chunks = tuple(
            _chunk(column, end, f"column {number} of row group {index}")
            for number, column in enumerate(about.get(1, ()))
        )
        size = sum(chunk.stop - chunk.start for chunk in chunks)
        if rows < 0 or not size:
            raise _damaged(f"row group {index} has {rows} rows in {size} bytes")
        groups.append(Group(index, rows, min(c.start for c in chunks), size, chunks))
    if len({group.begin for group in groups}) < len(groups):
        raise _damaged("two row groups begin at the same byte")
    return tuple(groups)


def _chunk(column: dict[int, Any], end: int, which: str) -> Chunk:
    if column.get(1):  # file_path
        raise UnitError("a summary of other Parquet files: it has no records of its own")
    if 8 in column:
        raise UnitError(f"{which} is encrypted")
    about = column.get(3, {})
    start = about.get(9, -1)
    # As pyarrow reads it: from its dictionary, if it has one, on.
    if 0 < (dictionary := about.get(11, 0)) < start:
        start = dictionary
    stop = start + about.get(7, -1)
    if not len(_MAGIC) <= start <= stop <= end:
        raise _damaged(f"{which} is to lie in bytes {start} to {stop}, of {end} before the footer")
    nulls = about.get(12, {}).get(3, 0)
    return Chunk(start, stop, about.get(5, 0), nulls, max(0, about.get(6, 0)))


def _damaged(why: str) -> UnitError:
    return UnitError(f"its Parquet footer is damaged: {why}")
