"""Reads JSON lines as records."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import get_args

from cachecd.config import SourceConfig
from cachecd.errors import RecordError, UnitError
from cachecd.model import Unit
from cachecd.sampler.encoding import declared
from cachecd.sampler.formats.content import Content
from cachecd.sampler.formats.jsonl.features import schema_of
from cachecd.sampler.formats.jsonl.lines import Line, LineSplitter
from cachecd.sampler.formats.jsonl.values import LineParser, Record
from cachecd.sampler.formats.packed import unpacked
from cachecd.sampler.formats.records import Format
from cachecd.sampler.meter import METER
from cachecd.sampler.read_ahead import PIECE
from cachecd_client.files.inflate import Compression
from cachecd_client.schema import Schema

# This many lines decide the types, or the first lines with this many bytes.
_SAMPLE, _SAMPLE_BYTES = 1000, 64 << 20
_TAIL = 64 << 10  # bytes of the first request after a range


class JsonLines(Format):
    """Reads lines as records. `transformed`: a transform changes the records before they are cached, and
    each line alone decides the types of its values. Without a transform, the first lines decide them."""

    def __init__(self, source: SourceConfig, transformed: bool) -> None:
        self._source = source
        self._transformed = transformed
        self._parser = LineParser(source.columns)

    def refusal(self, unit: Unit) -> str | None:
        if unit.begin and unit.seems_packed:
            return "it is a part of a compressed object, which can be read only from its start"
        return None

    def may_be_empty(self, unit: Unit) -> bool:
        return unit.begin > 0  # a long line may begin before the range, and end after it

    def span(self, unit: Unit) -> tuple[int, int]:
        if unit.seems_packed:
            return 0, unit.size
        begin = unit.begin + unit.offset
        return begin - _is_cut(unit), unit.begin + unit.size

    async def read(
        self, unit: Unit, content: Content
    ) -> AsyncGenerator[tuple[int, Record | RecordError], None]:
        async with aclosing(_lines(unit, content)) as lines:
            first, failure = list[Line](), None
            if self.schema is None and not self._transformed:
                first, failure = await _first(lines)
                if first:
                    self.schema = await METER.off_loop("decode", partial(self._schema_of, first))
            self._parser.follow(self.schema)
            for offset, line in first:
                yield offset, self._record(line)
            if failure is not None:
                raise failure
            async for offset, line in lines:
                yield offset, self._record(line)

    def _record(self, line: bytes | RecordError) -> Record | RecordError:
        if isinstance(line, RecordError):
            return line
        try:
            return self._parser.record(line)
        except RecordError as error:
            return error

    def _schema_of(self, lines: Sequence[Line]) -> Schema:
        source = self._source
        schema = schema_of((line for _, line in lines), source.columns, source.features)
        return declared(schema, source.features)


def _is_cut(unit: Unit) -> bool:
    """Whether the unit's first byte may be inside a line of the unit before."""
    return unit.begin > 0 and not unit.offset


async def _lines(unit: Unit, content: Content) -> AsyncGenerator[Line, None]:
    """Yields the lines from `unit.offset` on."""
    chunks, skip, end = content.chunks, 0, float(unit.size)
    if unit.seems_packed or not (unit.begin or unit.offset):
        # A plain line may look like the two bytes with which ZLIB begins.
        known = get_args(Compression) if unit.seems_packed else ("GZIP", "ZSTD")
        chunks, is_packed = await unpacked(unit, content, known, from_start=True)
        if is_packed and not unit.seems_packed:
            raise UnitError(
                "it is compressed, but its name does not show this, so it would be read in parts: add .gz "
                "or .zst to the name"
            )
    if unit.seems_packed:
        skip, end = unit.offset, float("inf")
    splitter = LineSplitter(-1 if _is_cut(unit) else unit.offset, end)
    async for chunk in chunks:
        data = memoryview(chunk).cast("B")
        if skip < len(data):
            for line in splitter.feed(data[skip:] if skip else chunk):
                yield line
            if splitter.is_done:
                return
        skip = max(0, skip - len(data))
    if splitter.is_within_line and not unit.seems_packed:
        at, step = unit.begin + unit.size, _TAIL
        size = (await content.find(unit.key)).size
        while at < size and splitter.is_within_line:
            stop = min(at + step, size)
            for line in splitter.feed(await content.read(at, stop)):
                yield line
            at, step = stop, min(2 * step, PIECE)
    if not splitter.is_done and (last := splitter.finish()) is not None:
        yield last


async def _first(lines: AsyncGenerator[Line, None]) -> tuple[list[Line], UnitError | None]:
    """Returns the lines that decide the types, and the error that ends them. The next lines remain."""
    first, size = list[Line](), 0
    try:
        async for offset, line in lines:
            first.append((offset, line))
            size += len(line) if isinstance(line, bytes) else 0
            if len(first) == _SAMPLE or size >= _SAMPLE_BYTES:
                break
    except UnitError as error:
        return first, error
    return first, None
