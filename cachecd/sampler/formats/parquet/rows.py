"""Rows of a row group as records; columns.py maps the types.

The wanted column chunks are fetched by ranges and held until the row group's last row. The rest of a row
group continues at its row. Parquet does not say where in the file a row is, so the row group is fetched
again. Therefore row groups should not be larger than a shard.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import Buffer

from cachecd.config import SourceConfig
from cachecd.errors import RecordError, UnitError
from cachecd.model import MISFIT, Unit
from cachecd.quantities import approximate_size
from cachecd.sampler.formats.content import Content
from cachecd.sampler.formats.parquet.columns import INT96_UNIT, Column
from cachecd.sampler.formats.parquet.features import schema_of
from cachecd.sampler.formats.parquet.footer import (
    DAMAGED,
    Chunk,
    Footer,
    Group,
    RandomAccess,
    read_footer,
    reason_of,
)
from cachecd.sampler.formats.records import Format
from cachecd.sampler.meter import METER
from cachecd.sampler.read_ahead import PIECE, together

# A batch has about this many bytes by the footer's figures, and at most this many rows: a footer does not
# count repeated values, and the rows bound them.
_BATCH_BYTES, _BATCH_ROWS = 8 << 20, 256
_GAP = 128 << 10  # up to this many bytes between two column chunks are fetched with them
_FOOTERS = 16 << 20  # bytes of footers that are kept

Record = dict[str, Any]


class Parquet(Format):
    """Reads row groups as records. `transformed`: a transform changes the records before they are cached.
    Without a transform the records have a schema, and a unit that does not fit a schema is skipped.
    `memory`: the bytes that the process may take."""

    def __init__(
        self, source: SourceConfig, transformed: bool, memory: float = float("inf")
    ) -> None:
        self._wanted = source.columns
        self._transformed = transformed
        self._memory = memory
        self._footers: OrderedDict[tuple[str, str], Footer] = OrderedDict()

    def refusal(self, unit: Unit) -> str | None:
        return None if unit.size else "not a Parquet file: it is empty"

    def span(self, unit: Unit) -> tuple[int, int] | None:
        return None  # the footer decides which bytes are fetched

    async def read(
        self, unit: Unit, content: Content
    ) -> AsyncGenerator[tuple[int, Record | RecordError], None]:
        footer = await self._footer(unit, content)
        columns = wanted_columns(footer, self._wanted)
        row = 0  # of the unit
        for group in _groups_of(unit, footer):
            if row + group.rows <= unit.offset:
                row += group.rows
                continue
            first = max(0, unit.offset - row)
            if misfit := self._misfit(columns):
                for nth in range(row + first, row + group.rows):
                    yield nth, RecordError(misfit)
                row += group.rows
                continue
            held = await self._fetch(footer, group, columns, content)
            batches = _batches(footer, group, columns, self._units(columns), held, first)
            done = 0
            try:
                following = partial(next, batches, None)
                while (batch := await METER.off_loop("decode", following)) is not None:
                    if isinstance(batch, RecordError):
                        yield row + first + done, batch
                        done += 1
                        continue
                    if self.schema is None and not self._transformed:
                        self.schema = schema_of(footer, columns, batch)
                    for record in _records(columns, batch):
                        yield row + first + done, record
                        done += 1
            except DAMAGED as error:
                kept = "; the records before it are kept" if row + first + done else ""
                raise UnitError(
                    f"rows from {row + first + done} on cannot be decoded: {reason_of(error)}{kept}"
                ) from error
            if first + done != group.rows:
                raise UnitError(
                    f"its Parquet footer says {group.rows} rows, but it has {first + done}: it is damaged"
                )
            row += group.rows

    def _units(self, columns: Sequence[Column]) -> list[str]:
        """Returns the unit of each date or time column: the schema's unit. If there is a transform, it is
        days or microseconds."""
        units = [column.unit for column in columns]
        if self._transformed:
            return ["days" if unit.startswith("days") else "us" for unit in units]
        known = self._known_units()
        return [known.get(column.name, column.unit) for column in columns]

    def _misfit(self, columns: Sequence[Column]) -> str:
        """Returns why no row fits the schema: a column means something else than it says. Else ""."""
        known = self._known_units()
        for column in columns:
            unit = known.get(column.name, column.unit)
            is_other = column.unit.partition(" ")[1:] != unit.partition(" ")[1:]
            if not self._transformed and (is_other or (not unit) != (not column.unit)):
                return (
                    f"{MISFIT}: column {column.name!r} has {column.unit or 'plain numbers'}, the schema "
                    f"says {unit or 'plain numbers'}"
                )
        return ""

    def _known_units(self) -> dict[str, str]:
        return {f.name: f.unit for f in self.schema.features} if self.schema else {}

    async def _footer(self, unit: Unit, content: Content) -> Footer:
        name = unit.key, unit.etag
        if (footer := self._footers.get(name)) is None:
            footer = await read_footer(content)
        self._footers[name] = footer
        self._footers.move_to_end(name)
        while len(self._footers) > 1 and sum(f.length for f in self._footers.values()) > _FOOTERS:
            self._footers.popitem(last=False)
        return footer

    async def _fetch(
        self, footer: Footer, group: Group, columns: Sequence[Column], content: Content
    ) -> _Held:
        """Fetches the wanted column chunks of a row group by concurrent requests."""
        ranges: list[tuple[int, int]] = []
        for start, stop in sorted((c.start, c.stop) for c in _chunks(group, columns)):
            if ranges and start <= ranges[-1][1] + _GAP:
                ranges[-1] = ranges[-1][0], max(stop, ranges[-1][1])
            else:
                ranges.append((start, stop))
        if (size := sum(stop - start for start, stop in ranges)) > self._memory:
            raise UnitError(
                f"row group {group.index} has {approximate_size(size)} in the wanted columns, more than "
                f"a worker may take ({approximate_size(self._memory)}): raise sampler.memory, or write "
                "smaller row groups"
            )
        pieces = [
            (at, min(at + PIECE, stop))
            for start, stop in ranges
            for at in range(start, stop, PIECE)
        ]
        data = await together(content.read(begin, end) for begin, end in pieces)
        begins = (begin for begin, _ in pieces)
        return _Held(footer.object_size, list(zip(begins, data, strict=True)))


def wanted_columns(footer: Footer, wanted: Sequence[str] | None) -> list[Column]:
    """Returns the columns to read: those whose own name, or the name of a struct around them, is `wanted`;
    or all. UnitError if a wanted column does not exist or cannot be stored, or two have the same name."""
    usable = [column for column in footer.columns if column.dtype]
    names = ", ".join(column.name for column in usable[:50])
    if wanted is None:
        if not usable:
            raise UnitError("it has no columns")
        wanted = [column.name for column in usable]
    for name in wanted:
        if not any(_is_in(column.name, name) for column in usable):
            raise UnitError(f"it has no column {name!r} (source.columns), only {names or 'none'}")
    chosen = [c for c in usable if any(_is_in(c.name, name) for name in wanted)]
    for name, count in Counter(column.name for column in chosen).items():
        if count > 1:
            raise UnitError(
                f"{count} of its columns have the name {name!r}: name other columns in source.columns"
            )
    return chosen


def _is_in(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}.")


def _groups_of(unit: Unit, footer: Footer) -> tuple[Group, ...]:
    """Returns the row groups of a unit: one, or all row groups of an object that could not be opened when
    it was listed."""
    if not footer.groups:
        raise UnitError("it has no records")
    groups = (
        tuple(g for g in footer.groups if g.begin == unit.begin) if unit.begin else footer.groups
    )
    if not groups:
        raise UnitError(f"no row group begins at byte {unit.begin}: it changed since it was listed")
    return groups


def _chunks(group: Group, columns: Sequence[Column]) -> list[Chunk]:
    return [group.chunks[column.leaf] for column in columns]


def _records(columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> Iterator[Record]:
    names = [column.name for column in columns]
    has_nulls = any(value is None for column in values for value in column)
    for row in zip(*values, strict=True):
        record = dict(zip(names, row, strict=True))
        if has_nulls:
            record = {name: value for name, value in record.items() if value is not None}
        yield record


class _Held(RandomAccess):
    """The file for pyarrow. It has only the fetched pieces, as (start, bytes)."""

    def __init__(self, size: int, pieces: list[tuple[int, Buffer]]) -> None:
        super().__init__(size)
        self._pieces = [(begin, memoryview(data).cast("B")) for begin, data in pieces]

    def part(self, start: int, stop: int) -> Buffer:
        parts = [
            data[max(start - at, 0) : stop - at]
            for at, data in self._pieces
            if at < stop and start < at + len(data)
        ]
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _batches(
    footer: Footer,
    group: Group,
    columns: Sequence[Column],
    units: Sequence[str],
    held: _Held,
    first: int,
) -> Iterator[list[list[Any]] | RecordError]:
    """Yields the values of each column from row `first` on, a few rows at a time; or why the next row
    cannot be stored. Blocks."""

    def values(rows: Any) -> list[list[Any]]:
        return [each.values(rows, unit) for each, unit in zip(columns, units, strict=True)]

    def one_row(row: Any) -> list[list[Any]] | RecordError:
        try:
            return values(row)
        except UnitError as error:
            return RecordError(str(error))

    made: list[list[list[Any]] | RecordError]
    file = pq.ParquetFile(
        pa.PythonFile(held, mode="r"),
        metadata=footer.metadata,
        pre_buffer=False,  # all of it is here
        coerce_int96_timestamp_unit=INT96_UNIT,
        page_checksum_verification=True,
    )
    size = sum(chunk.size for chunk in _chunks(group, columns))
    batches = file.iter_batches(
        batch_size=max(1, min(_BATCH_ROWS, _BATCH_BYTES * group.rows // max(1, size))),
        row_groups=[group.index],
        columns=[footer.metadata.schema.column(column.leaf).path for column in columns],
        use_threads=False,  # other sampler processes use the other cores
    )
    for batch in batches:
        skipped = min(first, batch.num_rows)
        first -= skipped
        if skipped < batch.num_rows:
            rows = batch.slice(skipped)
            try:
                made = [values(rows)]
            except UnitError:
                made = [one_row(rows.slice(nth, 1)) for nth in range(rows.num_rows)]
            yield from made
