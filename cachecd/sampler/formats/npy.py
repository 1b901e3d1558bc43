"""Format `npy`: windows of arrays that are read by byte range, never whole.

A record has `key` (of the object, or with several arrays, of the first array), `start` (int64: the first
row of the window) and `array`. Several arrays have their own names instead of `array`. arrays.py reads
one array, and windows.Cut computes the units.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cachecd.config.array import ArrayConfig
from cachecd.config.keypattern import text_in
from cachecd.errors import UnitError
from cachecd.model import ObjectInfo, Unit, encoded
from cachecd.sampler.encoding import infer
from cachecd.sampler.formats import arrays as array_files
from cachecd.sampler.formats.arrays import LARGEST, Array, ArrivingBytes
from cachecd.sampler.formats.content import Content, whole
from cachecd.sampler.formats.records import Format
from cachecd.sampler.formats.windows import Cut, is_dense
from cachecd.sampler.read_ahead import together
from cachecd.stores.backend import GoneError
from cachecd_client.schema import Feature, Schema

if TYPE_CHECKING:
    from cachecd.stores.fetch import Store

_TOGETHER = 16 << 20  # bytes of a unit that are read at a time
_GAP = 256 << 10  # two windows with at most this many bytes between them are read by one request
_MOST_LAYOUTS = 256  # open arrays that are remembered

Window = tuple[int, int]  # offset in the unit, first row


# --- listing units


def first_arrays(config: ArrayConfig, store: Store, after: str) -> Iterator[ObjectInfo]:
    """Yields one object for each stem, in key order: the object of the first array. If that is missing,
    yields the object of another array, and reading it reports the fault. For a single array, yields all
    matching objects. Blocks."""
    files = list(config.files.values())
    if not config.arrays:
        yield from (
            a for page in store.list(after) for a in page if array_files.matches(config, a.key)
        )
        return
    # The listing must be complete, because the objects of one stem may be far apart.
    by_stem: dict[str, tuple[int, ObjectInfo]] = {}
    for about in (a for page in store.list() for a in page):
        for number, file in enumerate(files):
            assert file.match is not None
            stem = text_in(file.match, about.key)
            if stem is not None and by_stem.get(stem, (len(files),))[0] > number:
                by_stem[stem] = number, about
    keys = {encoded(about.key): about for _, about in by_stem.values()}
    yield from (keys[key] for key in sorted(keys) if key > encoded(after))


async def units_in(
    config: ArrayConfig, content: Content, about: ObjectInfo
) -> Iterable[tuple[int, int]]:
    """Returns (begin, size) of each unit of an object that `first_arrays` yields. UnitError."""
    return (await _open_aligned(config, content, about.key, about.size)).cut.units()


# --- arrays that are read together


@dataclasses.dataclass(frozen=True, slots=True)
class _Aligned:
    """Arrays that are read together, by feature. `ratios`: (rows, per) means `rows` rows for each `per`
    rows of the first array. `cut`: the windows of the first array."""

    arrays: Mapping[str, Array]
    ratios: Mapping[str, tuple[int, int]]
    cut: Cut

    def range_of(self, name: str, start: int, stop: int) -> tuple[int, int]:
        """Returns the rows that belong to rows [start, stop) of the first array."""
        rows, per = self.ratios[name]
        return start * rows // per, stop * rows // per

    async def rows(self, name: str, content: Content, run: list[Window]) -> NDArray[Any]:
        """Returns the rows from the first window to the end of the last. UnitError."""
        stop = run[-1][1] + self.cut.window
        try:
            return await self.arrays[name].rows(content, *self.range_of(name, run[0][1], stop))
        except UnitError as error:
            if name == next(iter(self.arrays)):
                raise
            raise UnitError(f"array.arrays.{name}: {error}", passing=error.passing) from error

    @property
    def schema(self) -> Schema:
        features = [Feature("key", "bytes", "bytes", ()), Feature("start", "int64", "int64", ())]
        for name, array in self.arrays.items():
            layout = array.layout
            _, length = self.range_of(name, 0, self.cut.window)
            zero = np.zeros((), layout.stored.newbyteorder("="))
            example = {name: np.broadcast_to(zero, (length, *layout.shape))}
            [feature] = infer(example).features
            features.append(dataclasses.replace(feature, dtype=layout.dtype))
        return Schema(tuple(sorted(features, key=lambda feature: feature.name)))


def _siblings(config: ArrayConfig, key: str) -> dict[str, str]:
    """Returns feature -> key of the arrays that are read together with `key`, including `key`. UnitError if
    `key` is not the first array."""
    (name, first), *others = config.files.items()
    if not others:
        return {name: key}
    assert first.match is not None
    stem = text_in(first.match, key)
    if stem is None:
        raise UnitError(f"no object {first.match!r} of array.arrays.{name} belongs to it")
    return {name: key} | {n: (file.match or "").replace("*", stem) for n, file in others}


async def _open_aligned(
    config: ArrayConfig,
    content: Content,
    key: str,
    size: int | None = None,
    begun: ArrivingBytes | None = None,
) -> _Aligned:
    """Opens the arrays that belong to the object `key`, the first array. For `size` and `begun` see
    arrays.open_array. UnitError."""

    async def open_one(name: str, other: str) -> Array:
        if other == key:
            return await array_files.open_array(config.files[name], key, content, size, begun)
        try:
            return await array_files.open_array(config.files[name], other, content)
        except UnitError as error:
            why = "is missing" if isinstance(error, GoneError) else f"cannot be used: {error}"
            raise UnitError(f"{other!r} of array.arrays.{name} {why}") from None

    names = _siblings(config, key)
    opened = await together(open_one(name, other) for name, other in names.items())
    arrays = dict(zip(names, opened, strict=True))
    first, at = opened[0].layout, opened[0].at
    ratios = {name: _ratio(name, array.layout.rows, first.rows) for name, array in arrays.items()}
    grain = math.lcm(*(per for _, per in ratios.values()))
    total = sum(a.layout.row_bytes * ratios[n][0] / ratios[n][1] for n, a in arrays.items())
    if config.window * total > LARGEST:
        raise UnitError(
            f"a window of {config.window} rows has {config.window * total:.0f} bytes, expected at "
            f"most {LARGEST}: lower array.window"
        )
    each = max(1, math.ceil(total))
    return _Aligned(arrays, ratios, Cut.of(config, first.rows, grain, at, first.row_bytes, each))


def _ratio(name: str, rows: int, first: int) -> tuple[int, int]:
    """See _Aligned.ratios."""
    if not rows or not first:
        raise UnitError("the array has 0 rows")
    if rows % first and first % rows:
        raise UnitError(
            f"array.arrays.{name} has {rows} rows and the first array {first}: expected one to be a "
            "multiple of the other"
        )
    return max(rows // first, 1), max(first // rows, 1)


# --- reading


class Arrays(Format):
    """Reads the windows of a unit as records."""

    def __init__(self, config: ArrayConfig) -> None:
        self._config = config
        self._opened: OrderedDict[tuple[str, str], _Aligned] = OrderedDict()  # by key and ETag

    def refusal(self, unit: Unit) -> str | None:
        files = self._config.files.values()
        if not any(array_files.matches(file, unit.key) for file in files):
            patterns = ", ".join(repr(file.match) for file in files)
            return f"the key matches no pattern of array: {patterns}"
        return None if unit.size else "the object is empty"

    def span(self, unit: Unit) -> tuple[int, int] | None:
        first = next(iter(self._config.files.values()))
        return (
            whole(unit) if is_dense(self._config) and array_files.kind_of(unit.key, first) else None
        )

    async def read(
        self, unit: Unit, content: Content
    ) -> AsyncGenerator[tuple[int, dict[str, Any]], None]:
        span = self.span(unit)
        stream = None if span is None else ArrivingBytes(content.chunks, *span)
        aligned = await self._open(unit, content, stream)
        self.schema = self.schema or aligned.schema
        cut, arrays = aligned.cut, aligned.arrays
        first = next(iter(arrays))
        read = [name for name in arrays if stream is None or name != first]
        for runs in _group(cut.of_unit(unit), cut.window, cut.total_bytes):
            fetched = iter(
                await together(aligned.rows(name, content, run) for run in runs for name in read)
            )
            for run in runs:
                rows = {name: next(fetched) for name in read}
                begin = run[0][1]
                if stream is not None:
                    stop = run[-1][1] + cut.window
                    places = (cut.at + row * cut.row_bytes for row in (begin, stop))
                    rows[first] = array_files.shaped(
                        arrays[first].layout, await stream.take(*places)
                    )
                for offset, start in run:
                    record: dict[str, Any] = {"key": os.fsencode(unit.key), "start": start}
                    for name, array in arrays.items():
                        at, _ = aligned.range_of(name, begin, begin)
                        low, high = aligned.range_of(name, start, start + cut.window)
                        record[name] = array_files.window_of(
                            array.layout, rows[name], low - at, high - at
                        )
                    yield offset, record

    async def _open(self, unit: Unit, content: Content, stream: ArrivingBytes | None) -> _Aligned:
        version = unit.key, unit.etag
        if (aligned := self._opened.pop(version, None)) is None:
            begun = stream if stream is not None and stream.begin == 0 else None
            aligned = await _open_aligned(self._config, content, unit.key, begun=begun)
        self._opened[version] = aligned
        if len(self._opened) > _MOST_LAYOUTS:
            self._opened.popitem(last=False)
        return aligned


def _group(windows: Iterator[Window], length: int, row_bytes: int) -> Iterator[list[list[Window]]]:
    """Yields groups of runs. A group has at most _TOGETHER bytes, or one window. A run is a list of
    ascending windows with at most _GAP bytes between two of them."""
    runs: list[list[Window]] = []
    left = 0
    for window in windows:
        end = runs[-1][-1][1] + length if runs else window[1]
        near = bool(runs) and (window[1] - end) * row_bytes <= _GAP
        more = (window[1] + length - end if near else length) * row_bytes
        if runs and more > left:
            yield runs
            runs, near, more = [], False, length * row_bytes
        if not runs:
            left = _TOGETHER
        left -= more
        if near:
            runs[-1].append(window)
        else:
            runs.append([window])
    if runs:
        yield runs
