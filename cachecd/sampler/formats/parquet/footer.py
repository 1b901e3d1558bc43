"""A Parquet object's footer: its row groups, and the byte ranges of their column chunks."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import Buffer

from cachecd.errors import UnitError
from cachecd.model import ObjectInfo
from cachecd.sampler.formats.content import Content
from cachecd.sampler.formats.parquet.columns import INT96_UNIT, columns_of
from cachecd.stores.fetch import Store

# Bytes at the end of an object that the first request reads. Most footers are not longer.
TAIL = 64 << 10
# Footers of a thousand columns and a hundred row groups have some 10 MiB.
_LONGEST = 32 << 20
_MOST_GROUPS = 1 << 16
_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_END = 8  # bytes behind the footer: its length and the magic number

# The errors of pyarrow for a damaged file, also if the file needs more memory than there is.
DAMAGED = (pa.ArrowException, OSError, ValueError, OverflowError)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One column of a row group, in bytes [start, stop). `values` counts nulls and empty lists too. `size`:
    the uncompressed bytes of its pages."""

    start: int
    stop: int
    values: int
    size: int


@dataclass(frozen=True, slots=True)
class Group:
    """A row group with rows. `index` also counts row groups without rows. `size`: the sum of its compressed
    bytes."""

    index: int
    rows: int
    begin: int
    size: int
    chunks: tuple[Chunk, ...]


class Footer:
    """The footer of an object of `object_size` bytes. `raw`: the footer as it is in the object, with the
    bytes after it. UnitError if the footer contradicts itself."""

    def __init__(self, raw: bytes, object_size: int) -> None:
        limit = len(raw)  # no list or text in it has more elements than it has bytes
        try:
            file = pq.ParquetFile(
                pa.BufferReader(raw),
                coerce_int96_timestamp_unit=INT96_UNIT,
                thrift_string_size_limit=limit,
                thrift_container_size_limit=limit,
            )
            self.metadata: Any = file.metadata
            self.columns = columns_of(file.schema_arrow)
            self._check_chunks(object_size)
        except DAMAGED as error:
            raise UnitError(f"its Parquet footer cannot be read: {reason_of(error)}") from error
        self.length = len(raw)
        self.object_size = object_size
        self.groups = self._groups(object_size - len(raw))

    def _check_chunks(self, size: int) -> None:
        """Makes pyarrow construct every column chunk in a call that catches exceptions of its C++ code. In
        the later call of `column()` the same exception would end the process."""
        if self.metadata.num_row_groups > _MOST_GROUPS:
            raise UnitError(
                f"it has {self.metadata.num_row_groups} row groups, expected at most {_MOST_GROUPS}"
            )
        unread = pa.PythonFile(_Unread(size), mode="r")
        file = pq.ParquetFile(unread, metadata=self.metadata, buffer_size=4096, pre_buffer=False)
        for index in range(self.metadata.num_row_groups):
            try:
                next(file.iter_batches(row_groups=[index], use_threads=False), None)
            except _UnreadError:
                continue

    def _groups(self, end: int) -> tuple[Group, ...]:
        groups = []
        schema = self.metadata.schema
        kinds = [schema.column(number).physical_type for number in range(len(schema))]
        for index in range(self.metadata.num_row_groups):
            about = self.metadata.row_group(index)
            if about.num_rows == 0:
                continue
            types = [about.column(number).physical_type for number in range(about.num_columns)]
            if types != kinds:  # reading its statistics would end the process
                raise _damaged(f"row group {index} has other columns than its schema")
            chunks = tuple(
                _chunk(about.column(number), end, f"column {number} of row group {index}")
                for number in range(about.num_columns)
            )
            size = sum(chunk.stop - chunk.start for chunk in chunks)
            if about.num_rows < 0 or not size:
                raise _damaged(f"row group {index} has {about.num_rows} rows in {size} bytes")
            groups.append(Group(index, about.num_rows, min(c.start for c in chunks), size, chunks))
        if len({group.begin for group in groups}) < len(groups):
            raise _damaged("two row groups begin at the same byte")
        return tuple(groups)

    def has_nulls(self, leaf: int) -> bool:
        """Whether the statistics of a column count nulls, if it has statistics."""
        statistics = (self.metadata.row_group(g.index).column(leaf).statistics for g in self.groups)
        return any(about.null_count for about in statistics if about and about.has_null_count)


async def read_footer(
    content: Content, size: int | None = None, long_ones: asyncio.Lock | None = None
) -> Footer:
    """Returns the footer of an object of `size` bytes (None: unknown). UnitError if the object is not a
    Parquet file, or its footer contradicts itself.

    Holds `long_ones` while it holds a footer that is longer than TAIL.
    """
    if size is None:
        size, tail = await content.tail(TAIL)
    else:
        tail = await content.read(max(0, size - TAIL), size)
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
            f"its Parquet footer has {length} bytes, but the object has {size}: it is damaged"
        )
    if length > _LONGEST:
        raise UnitError(f"its Parquet footer has {length} bytes, expected at most {_LONGEST}")
    have = memoryview(tail).cast("B")
    missing = length + _END - len(have)
    if missing <= 0:
        return Footer(bytes(have[-missing:]), size)
    async with long_ones or contextlib.nullcontext():
        before = await content.read(size - _END - length, size - len(have))
        return Footer(b"".join((before, have)), size)


async def units_in(
    long_ones: asyncio.Lock, content: Content, about: ObjectInfo
) -> Iterable[tuple[int, int]]:
    """Returns begin and size of the row groups of an object. UnitError if it has none.

    Listing 10,000 objects takes 10,000 requests and at most 640 MB, or more if footers are long. The
    footers are dropped at once.
    """
    groups = (await read_footer(content, about.size, long_ones)).groups
    if not groups:
        raise UnitError("it has no records")
    return [(group.begin, group.size) for group in groups]


def first_footer(store: Store, objects: Iterable[ObjectInfo]) -> tuple[str, Footer] | None:
    """Returns key and footer of the first of these objects that is a Parquet file; None if none is.
    Blocks."""
    with asyncio.Runner() as runner:
        for unit in objects:
            with contextlib.suppress(UnitError):
                content = Content.without_chunks(unit, store)
                return unit.key, runner.run(read_footer(content))
    return None


def _chunk(about: Any, end: int, name: str) -> Chunk:
    if about.file_path:
        raise UnitError("a summary of other Parquet files: it has no records of its own")
    start = about.data_page_offset
    # Like pyarrow: a chunk begins at its dictionary, if it has one.
    if 0 < (about.dictionary_page_offset or 0) < start:
        start = about.dictionary_page_offset
    stop = start + about.total_compressed_size
    if not len(_MAGIC) <= start <= stop <= end:
        raise _damaged(f"{name} has bytes {start} to {stop}, but the footer begins at byte {end}")
    return Chunk(start, stop, about.num_values, max(0, about.total_uncompressed_size))


def _damaged(why: str) -> UnitError:
    return UnitError(f"its Parquet footer is damaged: {why}")


def reason_of(error: Exception) -> str:
    """Returns pyarrow's message in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


class _UnreadError(Exception):
    pass


class RandomAccess(io.IOBase):
    """A file for pyarrow, `size` bytes long; `part` returns its bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0

    def part(self, start: int, stop: int) -> Buffer:
        """Bytes [start, stop)."""
        raise NotImplementedError

    def read(self, length: int = -1) -> Buffer:
        stop = self._size if length < 0 else min(self._at + length, self._size)
        data = self.part(self._at, stop)
        self._at += memoryview(data).nbytes
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class _Unread(RandomAccess):
    def part(self, start: int, stop: int) -> Buffer:
        raise _UnreadError
