"""Divides the windows of an array into units. Only arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cachecd.config.array import ArrayConfig
from cachecd.errors import UnitError
from cachecd.model import Unit

# Bytes of a unit, in all arrays together. Measured with two arrays of 256 MiB on a local S3 server, windows
# of 75 KiB, one process and two busy cores: 46 to 67 MiB/s with units of 0.25 MiB, 101 to 120 with 1 MiB,
# 121 to 181 with 4 MiB, 150 to 187 with 8 MiB, 151 to 160 with 16 MiB. A shard mixes fewer large units.
TARGET = 4 << 20
# If windows overlap, bytes that two units share are fetched twice. Units as long as three windows bound
# these bytes to a third. No unit is made longer than this for that purpose.
_OVERLAPPING = 64 << 20
_MOST_UNITS = 1 << 20  # of one object: 4 TiB in units of TARGET


def is_dense(config: ArrayConfig) -> bool:
    """Whether a unit is read in sequence, because windows cover at least half of the bytes."""
    return (config.stride or config.window) <= 2 * config.window


@dataclass(frozen=True, slots=True)
class Cut:
    """Windows of `window` rows, one every `stride` rows, of an array of `rows` rows; divided into units.

    Row 0 begins at byte `at` of the object. A row has `row_bytes` bytes, and `total_bytes` in all arrays
    that are read together. The first unit begins at byte 0, so that it includes the header. A `dense`
    unit ends with its last window; the `size` of another unit is the sum of its windows' bytes.
    """

    rows: int
    window: int
    stride: int
    dense: bool
    at: int
    row_bytes: int
    total_bytes: int

    @staticmethod
    def of(
        config: ArrayConfig, rows: int, grain: int, at: int, row_bytes: int, total_bytes: int
    ) -> Cut:
        """UnitError if the array is shorter than a window, or if there are too many units. UnitError if
        window or stride is not a multiple of `grain` rows, because another array would have parts of rows
        in a window."""
        stride = config.stride or config.window
        if rows < config.window:
            raise UnitError(f"the array has {rows} rows, fewer than array.window ({config.window})")
        if config.window % grain or stride % grain:
            raise UnitError(
                f"array.window ({config.window}) and array.stride ({stride}) must be multiples of {grain}, "
                f"because one row of another array lasts {grain} rows of the first"
            )
        dense = is_dense(config)
        cut = Cut(rows, config.window, stride, dense, at, row_bytes, total_bytes)
        if (count := len(cut._runs())) > _MOST_UNITS:
            raise UnitError(
                f"the array has {count} units, expected at most {_MOST_UNITS}: check the shape in its "
                "header"
            )
        return cut

    @property
    def count(self) -> int:
        """Number of windows."""
        return (self.rows - self.window) // self.stride + 1

    def units(self) -> Iterator[tuple[int, int]]:
        """Yields (begin, size) of each unit; at least one."""
        runs = self._runs()
        for run in runs:
            first, stop = -(-run // self.stride), -(-(run + runs.step) // self.stride)
            stop = min(stop, self.count)
            if first < stop:
                begin = self._byte(first) if first else 0
                size = (stop - first) * self.window * self.row_bytes
                if self.dense:
                    size = self._byte(stop - 1) + self.window * self.row_bytes - begin
                yield begin, size

    def _runs(self) -> range:
        """Returns the rows at which units may begin."""
        each = self.total_bytes
        if not self.dense:
            windows = max(1, TARGET // (self.window * each))
            return range(0, self.count * self.stride, windows * self.stride)
        rows = max(TARGET // each, min(3 * self.window, _OVERLAPPING // each), self.stride)
        return range(0, self.rows, rows)

    def of_unit(self, unit: Unit) -> Iterator[tuple[int, int]]:
        """Yields (offset, first row) of each window of a unit, from the window at `unit.offset` on."""
        if self.dense:
            end = (unit.begin + unit.size - self.at) // self.row_bytes
            stop = (end - self.window) // self.stride + 1
        else:
            windows = unit.size // (self.window * self.row_bytes)
            stop = self._first(unit.begin) + max(1, windows)
        for nth in range(self._first(unit.begin + unit.offset), min(stop, self.count)):
            yield self._byte(nth) - unit.begin, nth * self.stride

    def _byte(self, nth: int) -> int:
        """Returns the offset of window `nth` in the object."""
        return self.at + nth * self.stride * self.row_bytes

    def _first(self, byte: int) -> int:
        """Returns the number of the first window that begins at or after this byte of the object."""
        return max(0, -(-(byte - self.at) // (self.stride * self.row_bytes)))
