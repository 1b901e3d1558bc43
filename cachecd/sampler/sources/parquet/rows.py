"""Rows of a row group as records; columns.py says what becomes of which type.

Only the wanted columns are fetched, and a row group is decoded in batches while it arrives, so that it
need not fit into memory, nor into a shard. What is left of one goes on at its row; but as Parquet says
nowhere where in the file a row is, it is fetched from the row group's beginning again. So row groups are
best not larger than a shard.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cachecd.config import SourceConfig
from cachecd.errors import UnitError
from cachecd.model import UnitSlice
from cachecd.sampler.sources.content import Content
from cachecd.sampler.sources.parquet.columns import Column, columns_of
from cachecd.sampler.sources.parquet.features import schema_of
from cachecd.sampler.sources.parquet.footer import TAIL, Footer, Group, read_footer
from cachecd.sampler.sources.parquet.pieces import Pieces, PiecesFile
from cachecd_client.schema import Schema

# A batch is to have this many bytes, by what the footer says, and so many rows at most: by the rows there
# is a bound to what repeated values can come to, about which a footer says nothing.
_BATCH_BYTES, _BATCH_ROWS = 8 << 20, 256
# pyarrow reads a column by so much at a time, and all of them together by four times as much at most.
_BUFFER = 8 << 20
_FOOTERS = 16 << 20  # bytes of footers that are kept, as they were read

# What pyarrow raises of a file that is not sound; of one that wants more memory than there is, too.
_DAMAGED = (pa.ArrowException, OSError, ValueError, OverflowError)

Record = dict[str, Any]


class File:
    """One object: its footer as it is, and as pyarrow has it. UnitError if that cannot be had."""

    def __init__(self, footer: Footer) -> None:
        limit = len(footer.raw)  # no list or text in it has more elements than it has bytes
        try:
            file = pq.ParquetFile(
                pa.BufferReader(footer.raw),
                thrift_string_size_limit=limit,
                thrift_container_size_limit=limit,
            )
            self.metadata: Any = file.metadata
            self.columns = columns_of(file.schema_arrow)
        except _DAMAGED as error:
            raise UnitError(f"its Parquet footer cannot be read: {_told(error)}") from error
        self.footer = footer
        leaves = len(self.metadata.schema)
        if any(len(group.chunks) != leaves for group in footer.groups):
            raise UnitError("its Parquet footer is damaged: a row group lacks columns")


class Parquet:
    """Reads row groups as records. `transformed`: whether something is done to them before they are
    cached; what is not has a schema, and what a schema cannot hold sets its unit aside."""

    single = False
    ranged = True

    def __init__(self, source: SourceConfig, transformed: bool) -> None:
        self._wanted = source.columns
        self._transformed = transformed
        self._files: OrderedDict[tuple[str, str], File] = OrderedDict()
        self.schema: Schema | None = None

    def refusal(self, unit: UnitSlice) -> str | None:
        return None if unit.size else "not a Parquet file: it is empty"

    def span(self, unit: UnitSlice) -> tuple[int, int] | None:
        return None  # what is fetched depends on the footer

    async def read(
        self, unit: UnitSlice, content: Content
    ) -> AsyncGenerator[tuple[int, Record], None]:
        file = await self._file(unit, content)
        groups = _groups_of(unit, file.footer)
        columns = wanted_columns(file, self._wanted)
        chunks = [[group.chunks[column.leaf] for column in columns] for group in groups]
        pieces = Pieces([[(c.start, c.stop) for c in some] for some in chunks], content.read)
        pieces.start()
        batches = _Batches(file, groups, columns, pieces, unit.offset)
        ahead = asyncio.create_task(asyncio.to_thread(batches.next))
        try:
            while (batch := await ahead) is not None:
                # The next one is decoded while this one's records are written.
                ahead = asyncio.create_task(asyncio.to_thread(batches.next))
                first, values = batch
                if self.schema is None and not self._transformed:
                    self.schema = schema_of(
                        file.footer, file.metadata.metadata or {}, columns, values
                    )
                for row, record in enumerate(_records(columns, values), first):
                    yield row, record
        finally:
            pieces.close()  # which lets go the thread that may still be decoding
            await asyncio.gather(ahead, return_exceptions=True)

    async def _file(self, unit: UnitSlice, content: Content) -> File:
        name = unit.key, unit.etag
        if (file := self._files.get(name)) is None:
            size, tail = await content.tail(TAIL)
            file = File(await read_footer(tail, size, content.read))
        self._files[name] = file
        self._files.move_to_end(name)
        while (
            len(self._files) > 1 and sum(len(f.footer.raw) for f in self._files.values()) > _FOOTERS
        ):
            self._files.popitem(last=False)
        return file


def wanted_columns(file: File, wanted: Sequence[str] | None) -> list[Column]:
    """The columns to be read: those that are `wanted`, by their own name or that of what they are in, or
    all. UnitError if one is not there, or has no values."""
    usable = [column for column in file.columns if column.dtype]
    names = ", ".join(column.name for column in usable[:50])
    if wanted is None:
        if not usable:
            raise UnitError("it has no columns")
        return usable
    for name in wanted:
        if not any(_is_in(column.name, name) for column in usable):
            raise UnitError(f"it has no column {name!r} (source.columns), only {names or 'none'}")
    return [c for c in usable if any(_is_in(c.name, name) for name in wanted)]


def _is_in(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}.")


def _groups_of(unit: UnitSlice, footer: Footer) -> tuple[Group, ...]:
    """The row groups of a unit: one, or all of an object that could not be looked into when listed."""
    if not footer.groups:
        raise UnitError("it has no records")
    groups = (
        tuple(g for g in footer.groups if g.begin == unit.begin) if unit.begin else footer.groups
    )
    if not groups:
        raise UnitError(f"no row group begins at byte {unit.begin}: it changed since it was listed")
    return groups


def _records(columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> Iterator[Record]:
    names = [column.name for column in columns]
    has_nulls = any(value is None for column in values for value in column)
    for row in zip(*values, strict=True):
        record = dict(zip(names, row, strict=True))
        if has_nulls:
            record = {name: value for name, value in record.items() if value is not None}
        yield record


def _told(error: Exception) -> str:
    """What pyarrow says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


class _Batches:
    """The rows of some row groups from row `first` on, decoded a few at a time. `next` blocks: it is for a
    thread."""

    def __init__(
        self,
        file: File,
        groups: Sequence[Group],
        columns: Sequence[Column],
        pieces: Pieces,
        first: int,
    ) -> None:
        self._file = file
        self._groups = groups
        self._columns = columns
        self._pieces = pieces
        self._first = first
        self._row = 0
        self._batches: Iterator[Any] | None = None

    def next(self) -> tuple[int, list[list[Any]]] | None:
        """The number of the first row, and the values of each column; None at the end. UnitError; or what
        a fetch has raised."""
        try:
            if self._batches is None:
                self._batches = self._open()
            for batch in self._batches:
                skip = min(max(0, self._first - self._row), batch.num_rows)
                self._row += skip
                if skip < batch.num_rows:
                    first, batch = self._row, batch.slice(skip)
                    values = [column.values(batch) for column in self._columns]
                    self._row += batch.num_rows
                    return first, values
        except _DAMAGED as error:
            raise self._failure(error) from error
        rows = sum(group.rows for group in self._groups)
        if self._row != rows:
            raise UnitError(
                f"its Parquet footer claims {rows} rows, it has {self._row}: it is damaged"
            )
        return None

    def _failure(self, error: Exception) -> Exception:
        if self._pieces.failure is not None:
            return self._pieces.failure
        kept = "; the records before it are kept" if self._row else ""
        return UnitError(f"rows from {self._row} on cannot be decoded: {_told(error)}{kept}")

    def _open(self) -> Iterator[Any]:
        metadata, leaves = self._file.metadata, [column.leaf for column in self._columns]
        file = pq.ParquetFile(
            pa.PythonFile(PiecesFile(self._pieces, self._file.footer.object_size), mode="r"),
            metadata=metadata,
            buffer_size=max(4096, min(1 << 20, _BUFFER // len(leaves))),
            pre_buffer=False,  # Pieces does that, within bounds
            page_checksum_verification=True,
        )
        batches: Iterator[Any] = file.iter_batches(
            batch_size=self._batch_rows(leaves),
            row_groups=[group.index for group in self._groups],
            columns=[metadata.schema.column(leaf).path for leaf in leaves],
            use_threads=False,  # there are other sampler processes
        )
        return batches

    def _batch_rows(self, leaves: Sequence[int]) -> int:
        size = sum(group.chunks[leaf].size for group in self._groups for leaf in leaves)
        rows = sum(group.rows for group in self._groups)
        return int(max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(1, size))))
