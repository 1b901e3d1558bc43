"""Reads windows along axis 0 of arrays in files, and groups the windows into units."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.errors import SourceUnreachableError
from cachecd.sampler.view import StoreView

UNIT = 4 << 20  # bytes
_NAME = re.compile(r"(.*)\[(\d+):(\d+)\]", re.S)

# Shape, dtype, and number of rows that are stored together in a chunk.
Layout = tuple[tuple[int, ...], np.dtype[Any], int]


class ArrayWindows:
    """A reader of windows of `window` rows, one every `stride` rows (default: `window`).

    `match`: a pattern for the names of files. `path`: the path of the array in a file, or feature -> path
    for several arrays with the same number of rows. Default: the only array. A record has `key` (bytes),
    `start` (the first row), and `array` or each array under its feature. Rows after the last window are
    not read.

    A subclass has three methods. `names(store)` yields the names of all files. `layouts(store, name)` opens
    a file and returns feature -> Layout. `rows(start, stop)` reads the file that was opened last, and
    returns feature -> array.
    """

    names: Callable[[StoreView], Iterator[str]]
    layouts: Callable[[StoreView, str], dict[str, Layout]]
    rows: Callable[[int, int], dict[str, NDArray[Any]]]

    def __init__(
        self,
        window: int,
        stride: int | None = None,
        match: str = "*",
        path: str | Mapping[str, str] | None = None,
    ) -> None:
        self._window, self._stride, self._match = window, stride or window, match
        if any(type(n) is not int or n < 1 for n in (self._window, self._stride)):
            raise ValueError(f"window {window}, stride {stride}: expected whole numbers above 0")
        self.paths = dict(path) if isinstance(path, Mapping) else {"array": path}

    def units(self, store: StoreView) -> Iterator[dict[str, Any]]:
        """Yields the units. A file that cannot be opened is one unit, and reading this unit raises the
        error."""
        for name in self.names(store):
            if not fnmatchcase(name, self._match):
                continue
            try:
                stop, step, row_bytes = self._cut(self.layouts(store, name))
            except SourceUnreachableError:
                raise
            except Exception:
                yield {"name": name}
                continue
            for at in range(0, stop, step):
                end = min(at + step, stop)
                begin = -(-at // self._stride) * self._stride
                if begin < end:
                    size = (end - begin + self._window - 1) * row_bytes
                    yield {"name": f"{name}[{begin}:{end}]", "size": size}

    def read(self, unit: str, store: StoreView) -> Iterator[dict[str, Any]]:
        window = _NAME.fullmatch(unit)
        name, first = (window[1], int(window[2])) if window else (unit, 0)
        layouts = self.layouts(store, name)
        stop, _, _ = self._cut(layouts)
        starts = range(first, min(int(window[3]), stop) if window else stop, self._stride)
        if not starts:
            raise ValueError(
                f"{name} has no window at row {first}: the object changed since it was listed"
            )
        rows = self.rows(first, starts[-1] + self._window)
        for start in starts:
            record = {"key": name.encode("utf-8", "surrogateescape"), "start": start}
            for feature, array in rows.items():
                part = array[start - first : start - first + self._window]
                record[feature] = np.ascontiguousarray(part, layouts[feature][1].newbyteorder("="))
            yield record

    def _cut(self, layouts: dict[str, Layout]) -> tuple[int, int, int]:
        """Returns the number of rows at which a window may begin, the rows of a unit, and the bytes of a
        row."""
        for feature, (shape, dtype, _) in layouts.items():
            if dtype.kind not in "biuf" or dtype.itemsize > 8:
                raise ValueError(f"{feature} is of dtype {dtype}, expected numbers")
            if not shape:
                raise ValueError(f"{feature} is a scalar, so it has no rows")
        counts = {shape[0] for shape, _, _ in layouts.values()}
        if len(counts) > 1:
            raise ValueError(
                f"the arrays have {sorted(counts)} rows, expected the same number in each"
            )
        rows = counts.pop()
        if rows < self._window:
            raise ValueError(f"the array has {rows} rows, fewer than window ({self._window})")
        each = sum(math.prod(s[1:]) * dtype.itemsize for s, dtype, _ in layouts.values())
        step = max(UNIT // max(1, each), self._window, self._stride)
        chunk = max(chunk for _, _, chunk in layouts.values())
        # A chunk that two units share is fetched twice.
        return rows - self._window + 1, -(-step // chunk) * chunk, each
