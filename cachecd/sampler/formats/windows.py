"""The windows of an array, and their division into units. Only arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cachecd.config.array import ArrayConfig
from cachecd.errors import UnitError
from cachecd.model import Unit

# What a unit is to be fetched from, in bytes of all its arrays together: as much as one request asks
# for (ahead.PIECE). Of two arrays of 256 MiB on a local S3 server, with windows of 75 KiB, one process
# on two busy cores made 46 to 67 MiB/s in units of 0.25 MiB, 101 to 120 of 1 MiB, 121 to 181 of 4 MiB,
# 150 to 187 of 8 MiB and 151 to 160 of 16 MiB; larger ones leave fewer to be mixed into a shard.
TARGET = 4 << 20
# Where windows overlap, what two units share is fetched twice. A unit of three windows' extent bounds
# that to a third, as long as it is not more than this.
_OVERLAPPING = 64 << 20
_MOST_UNITS = 1 << 20  # of one object: 4 TiB in units of TARGET


def is_dense(config: ArrayConfig) -> bool:
    """Whether a unit's bytes are read from one end to the other: if at least half of them are used."""
    return (config.stride or config.window) <= 2 * config.window


@dataclass(frozen=True, slots=True)
class Cut:
    """The windows of an array of `rows` rows, one every `stride` rows, and their division into units.

    The rows have `row_bytes` each, from byte `at` of the object on; in all arrays that are read together,
    `total_bytes`. The first unit begins at byte 0, so that it has the header. A `dense` unit ends with its
    last window; for other units, `size` counts the windows' bytes.
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
        """Starts and lengths must be multiples of `grain` rows, so that each window has whole rows in all
        arrays. UnitError if they are not, if the array is shorter than a window, or if there are too many
        units."""
        stride = config.stride or config.window
        if rows < config.window:
            raise UnitError(f"the array has {rows} rows, fewer than array.window ({config.window})")
        if config.window % grain or stride % grain:
            raise UnitError(
                f"array.window ({config.window}) and array.stride ({stride}) have to be multiples of "
                f"{grain}: one row of another array lasts {grain} rows of the first"
            )
        dense = is_dense(config)
        cut = Cut(rows, config.window, stride, dense, at, row_bytes, total_bytes)
        if (count := len(cut._runs())) > _MOST_UNITS:
            raise UnitError(
                f"the array's shape makes {count} units of it, more than {_MOST_UNITS}: is its "
                "header sound?"
            )
        return cut

    @property
    def count(self) -> int:
        """The number of windows."""
        return (self.rows - self.window) // self.stride + 1

    def units(self) -> Iterator[tuple[int, int]]:
        """Returns (begin, size) of all units; at least one."""
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
            return range(
                0,
                self.count * self.stride,
                max(1, TARGET // (self.window * each)) * self.stride,
            )
        rows = max(TARGET // each, min(3 * self.window, _OVERLAPPING // each), self.stride)
        return range(0, self.rows, rows)

    def of_unit(self, unit: Unit) -> Iterator[tuple[int, int]]:
        """Yields (offset, start row) of each window of a unit, from the window of `unit.offset` on."""
        if self.dense:
            end = (unit.begin + unit.size - self.at) // self.row_bytes
            stop = (end - self.window) // self.stride + 1
        else:
            windows = unit.size // (self.window * self.row_bytes)
            stop = self._first(unit.begin) + max(1, windows)
        for nth in range(self._first(unit.begin + unit.offset), min(stop, self.count)):
            yield self._byte(nth) - unit.begin, nth * self.stride

    def _byte(self, nth: int) -> int:
        """Returns the byte of the object at which window `nth` begins."""
        return self.at + nth * self.stride * self.row_bytes

    def _first(self, byte: int) -> int:
        """Returns the first window that begins at or after this byte of the object."""
        return max(0, -(-(byte - self.at) // (self.stride * self.row_bytes)))
