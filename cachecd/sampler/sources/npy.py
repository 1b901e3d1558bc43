"""Format `npy`: windows of arrays that are read by byte range, never whole.

Features: `key` (of the object; of several, the first array's), `start` (int64: the row at which the
window begins) and the array as `array`, or each of several under its own name. What the units are,
windows.Cut says; how an object stores its rows, arrays.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any

from numpy.typing import NDArray
from typing_extensions import Buffer

from cachecd.config.array import ArrayConfig
from cachecd.errors import UnitError
from cachecd.model import Unit
from cachecd.sampler.ahead import PIECE
from cachecd.sampler.sources.aligned import Aligned, open_aligned
from cachecd.sampler.sources.arrays import (
    kind_of,
    shaped,
    window_of,
)
from cachecd.sampler.sources.content import Content, whole
from cachecd.sampler.sources.windows import is_dense
from cachecd_client.schema import Schema

_AHEAD = (
    32 << 20
)  # bytes of a unit's reads that may run at a time, beside the one that is waited for
_GAP = 256 << 10  # bytes between two windows that are read along rather than ask twice
_KNOWN = 256  # arrays of which the layout is remembered


class Arrays:
    """Reads units as windows."""

    ranged = True
    single = False

    def __init__(self, config: ArrayConfig) -> None:
        self.schema: Schema | None = None
        self._config = config
        self._dense = is_dense(config)
        self._known: OrderedDict[tuple[str, str], Aligned] = OrderedDict()

    def refusal(self, unit: Unit) -> str | None:
        return None if unit.size else "the object is empty"

    def span(self, unit: Unit) -> tuple[int, int] | None:
        first = next(iter(self._config.files.values()))
        return whole(unit) if self._dense and kind_of(unit.key, first) else None

    async def read(
        self, unit: Unit, content: Content
    ) -> AsyncGenerator[tuple[int, dict[str, Any]], None]:
        name = next(iter(self._config.files))
        span = self.span(unit)
        stream = None if span is None else _Stream(content.chunks, *span)
        aligned = await self._open(unit, content, stream)
        self.schema = self.schema or aligned.schema
        layouts = {n: array.layout for n, array in aligned.arrays.items()}
        length = aligned.cut.windows.window
        groups = self._groups(aligned, unit, content, name if stream else None)
        async with contextlib.aclosing(groups):  # what it has asked for is not wanted any more
            async for group, rows in groups:
                first, last = group[0][1], group[-1][1]
                if stream is not None:
                    begin, each = aligned.cut.at, layouts[name].row_bytes
                    data = await stream.take(begin + first * each, begin + (last + length) * each)
                    rows[name] = shaped(layouts[name], data)
                for offset, start in group:
                    record: dict[str, Any] = {"key": os.fsencode(unit.key), "start": start}
                    for n in layouts:
                        begin, stop = aligned.range_of(n, start, start + length)
                        at, _ = aligned.range_of(n, first, first)
                        record[n] = window_of(layouts[n], rows[n], begin - at, stop - at)
                    yield offset, record

    async def _open(self, unit: Unit, content: Content, stream: _Stream | None) -> Aligned:
        if (found := self._known.get((unit.key, unit.etag))) is not None:
            self._known.move_to_end((unit.key, unit.etag))
            return found
        begun = stream if stream is not None and stream.begin == 0 else None
        found = await open_aligned(self._config, unit.key, content, begun=begun)
        self._known[unit.key, unit.etag] = found
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return found

    async def _groups(
        self, aligned: Aligned, unit: Unit, content: Content, streamed: str | None
    ) -> AsyncGenerator[tuple[list[tuple[int, int]], dict[str, NDArray[Any]]], None]:
        """The unit's windows, as many together as one request brings, with the rows of all arrays but
        the streamed one from the first window's start to the last one's end."""
        total, length = aligned.cut.total_bytes, aligned.cut.windows.window
        under_way: deque[tuple[list[tuple[int, int]], asyncio.Task[dict[str, NDArray[Any]]]]]
        under_way, held = deque(), 0

        async def fetch(group: list[tuple[int, int]]) -> dict[str, NDArray[Any]]:
            names = [name for name in aligned.arrays if name != streamed]
            ranges = [aligned.range_of(name, group[0][1], group[-1][1] + length) for name in names]
            found = await asyncio.gather(
                *(
                    aligned.rows(name, content, rows)
                    for name, rows in zip(names, ranges, strict=True)
                )
            )
            return dict(zip(names, found, strict=True))

        def size(group: list[tuple[int, int]]) -> int:
            return (group[-1][1] + length - group[0][1]) * total

        groups = _together(aligned.cut.of(unit), length, _GAP // total, PIECE // total)
        following = next(groups, None)
        try:
            while following is not None or under_way:
                while following is not None and (not under_way or held + size(following) <= _AHEAD):
                    task = asyncio.create_task(fetch(following))
                    task.add_done_callback(_heard)
                    under_way.append((following, task))
                    held += size(following)
                    following = next(groups, None)
                group, task = under_way[0]
                yield group, await task
                under_way.popleft()
                held -= size(group)
        finally:
            for _, task in under_way:
                task.cancel()


def _together(
    windows: Iterator[tuple[int, int]], length: int, gap: int, most: int
) -> Iterator[list[tuple[int, int]]]:
    """Ascending windows in groups of `most` rows, with not more than `gap` rows between two."""
    group: list[tuple[int, int]] = []
    for window in windows:
        start = window[1]
        if group and (start - group[-1][1] - length > gap or start + length - group[0][1] > most):
            yield group
            group = []
        group.append(window)
    if group:
        yield group


def _heard(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


class _Stream:
    """Bytes [begin, end) of an object, which come in order, by their place in it."""

    def __init__(self, chunks: AsyncIterator[Buffer], begin: int, end: int) -> None:
        self.begin = begin
        self._chunks = chunks
        self.end = end
        self._at = begin  # what has come ends here
        self._held: deque[tuple[int, memoryview]] = deque()

    async def read(self, start: int, stop: int) -> Buffer:
        return await self.take(start, stop)

    async def take(self, start: int, stop: int) -> Buffer:
        """Bytes [start, stop). What lies before them cannot be asked for any more."""
        while self._held and self._held[0][0] + self._held[0][1].nbytes <= start:
            self._held.popleft()
        while self._at < stop:
            try:
                chunk = memoryview(await anext(self._chunks)).cast("B")
            except StopAsyncIteration:
                raise UnitError(f"its bytes end at {self._at}, expected {stop}") from None
            if self._at + chunk.nbytes > start:
                self._held.append((self._at, chunk))
            self._at += chunk.nbytes
        parts = [piece[max(start - at, 0) : stop - at] for at, piece in self._held if at < stop]
        return parts[0] if len(parts) == 1 else b"".join(parts)
