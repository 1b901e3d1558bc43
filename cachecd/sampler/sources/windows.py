"""Where the windows of an array lie, and which of them make a unit. Arithmetic alone."""

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
    """Whether a unit's bytes are read from one end to the other: at least half of them are used."""
    return (config.stride or config.window) <= 2 * config.window


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of an array of `rows` rows: `count` of them, one every `stride` rows."""

    rows: int
    window: int
    stride: int

    @staticmethod
    def of(config: ArrayConfig, rows: int, grain: int) -> Windows:
        """Starts and lengths must be multiples of `grain` rows, so that each window is whole rows in all
        arrays. UnitError if they are not, or if the array is shorter than a window."""
        stride = config.stride or config.window
        if rows < config.window:
            raise UnitError(f"the array has {rows} rows, fewer than array.window ({config.window})")
        if config.window % grain or stride % grain:
            raise UnitError(
                f"array.window ({config.window}) and array.stride ({stride}) have to be multiples of "
                f"{grain}: one row of another array lasts {grain} rows of the first"
            )
        return Windows(rows, config.window, stride)

    @property
    def count(self) -> int:
        return (self.rows - self.window) // self.stride + 1

    def start(self, nth: int) -> int:
        """The row at which window `nth` begins."""
        return nth * self.stride

    def index(self, row: int) -> int:
        """The first window that begins at this row or later."""
        return -(-row // self.stride)


@dataclass(frozen=True, slots=True)
class Cut:
    """How the windows of one object are cut into units, and what of the object each is.

    The array's rows are `row_bytes` each, from byte `at` of the object on; of all arrays that are read
    together, `total_bytes`. The first unit begins at byte 0, so that it has the header. A unit that is
    `dense` ends where its last window does; of others, `size` counts the windows' bytes.
    """

    windows: Windows
    dense: bool
    at: int
    row_bytes: int
    total_bytes: int

    def check(self) -> None:
        """UnitError if there are too many units."""
        if (count := len(self._runs())) > _MOST_UNITS:
            raise UnitError(
                f"the array's shape makes {count} units of it, more than {_MOST_UNITS}: is its "
                "header sound?"
            )

    def units(self) -> Iterator[tuple[int, int]]:
        """(begin, size) of all; at least one."""
        windows, runs = self.windows, self._runs()
        for run in runs:
            first, stop = run, run + runs.step
            if self.dense:
                first, stop = windows.index(first), windows.index(stop)
            stop = min(stop, windows.count)
            if first < stop:
                yield self._unit(first, stop)

    def _runs(self) -> range:
        """Of the dense: the rows at which units begin; else, the windows."""
        windows, each = self.windows, self.total_bytes
        if not self.dense:
            return range(0, windows.count, max(1, TARGET // (windows.window * each)))
        rows = max(TARGET // each, min(3 * windows.window, _OVERLAPPING // each), windows.stride)
        return range(0, windows.rows, rows)

    def _unit(self, first: int, stop: int) -> tuple[int, int]:
        windows = self.windows
        begin = self.at + windows.start(first) * self.row_bytes if first else 0
        if not self.dense:
            return begin, (stop - first) * windows.window * self.row_bytes
        return begin, self._byte(windows.start(stop - 1) + windows.window) - begin

    def _byte(self, row: int) -> int:
        return self.at + row * self.row_bytes

    def of(self, unit: Unit) -> Iterator[tuple[int, int]]:
        """(offset, start row) of each window of a unit, from that on which `unit.offset` names."""
        windows = self.windows
        begin = max(unit.begin - self.at, 0) // self.row_bytes
        first = windows.index(begin)
        if self.dense:
            end = (unit.begin + unit.size - self.at) // self.row_bytes
            stop = (end - windows.window) // windows.stride + 1
            if unit.offset:
                at = unit.begin + unit.offset - self.at
                first = windows.index(-(-at // self.row_bytes))
            for nth in range(first, min(stop, windows.count)):
                yield self._byte(windows.start(nth)) - unit.begin, windows.start(nth)
        else:
            each = windows.window * self.row_bytes
            stop = first + max(1, unit.size // each)
            for nth in range(first + unit.offset // each, min(stop, windows.count)):
                yield (nth - first) * each, windows.start(nth)
