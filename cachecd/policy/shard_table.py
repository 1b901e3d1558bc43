"""The shard table of one generation: which shards are live, quarantined or retired, and who holds them.

Compact (40 bytes a shard), because a generation may have 100,000 shards. A stream's shards are an
interval of its numbers: each stream has one array, indexed by j minus the first j. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.policy.values import Intervals, Name, ShardFacts

_ROW = np.dtype(
    [
        ("allocated", "<i8"), ("records", "<u4"), ("data_bytes", "<i8"), ("ended", "<u4"),
        ("digest", "<u8"), ("holds", "<u4"), ("version", "<u2"), ("status", "u1"),
    ]
)  # fmt: skip
_FACTS = ShardFacts._fields  # the row begins with them, but for the version


class Status(IntEnum):
    """The status of a shard number.

    GONE: no file is left. LIVE: the next lease names it. QUARANTINED: damaged, or it holds an excluded
    record. RETIRING: no later lease names it, but a start might still take it for live, because its
    mark or its unlink is not durable yet. RETIRED: a durable mark says so, and a lease names it.
    UNLINKING: it was RETIRED, and its unlink has begun.
    """

    GONE = 0
    LIVE = 1
    QUARANTINED = 2
    RETIRING = 3
    RETIRED = 4
    UNLINKING = 5


_MOST_LEFT = 1024  # shards that old leases name, far behind the others of their stream
_LIVE = (Status.LIVE, Status.QUARANTINED)
_CURRENT = (*_LIVE, Status.RETIRING)


@dataclass(frozen=True, slots=True)
class ShardSet:
    """Shards that a lease may name. `versions` are the exceptions: numbers whose version is not 0."""

    intervals: Intervals
    versions: tuple[Name, ...]
    records: int
    data_bytes: int
    allocated: int
    digest: int


@dataclass(slots=True)
class _Column:
    """The shards of one stream: row i is shard `base + i`. No row before `live` is live, and none before
    `current` would a start take for live."""

    base: int = 0
    size: int = 0
    live: int = 0
    current: int = 0
    rows: NDArray[np.void] = field(default_factory=lambda: np.zeros(16, _ROW))

    def append(self, j: int) -> Any:
        """The row of a new shard: j is above every other of the stream."""
        if not self.size:
            self.base, self.live, self.current = j, 0, 0
        index = j - self.base
        if index >= len(self.rows):
            grown = np.zeros(max(2 * len(self.rows), index + 1), _ROW)
            grown[: self.size] = self.rows[: self.size]
            self.rows = grown
        self.size = index + 1
        return self.rows[index]

    def seek(self, index: int, statuses: tuple[Status, ...]) -> int:
        """The first row from `index` on with such a status; `size` if there is none."""
        while index < self.size and self.rows["status"][index] not in statuses:
            index += 1
        return index

    def slice(self, first: int, last: int) -> NDArray[np.void]:
        """The rows of shards first to last; fewer where the column does not reach."""
        rows = self.rows[: self.size]
        return rows[max(0, first - self.base) : max(0, last + 1 - self.base)]

    def drop(self, count: int) -> None:
        """Forgets the first rows. Their status is GONE."""
        self.rows = self.rows[count : self.size].copy()
        self.base, self.size = self.base + count, self.size - count
        self.live, self.current = max(0, self.live - count), max(0, self.current - count)


@dataclass(slots=True)
class _Elder:
    """An older version of a number, or a retired shard far behind the others, which leases still name."""

    allocated: int
    holds: int
    unlinking: bool = False


class ShardTable:
    """All shards of a generation of `streams` streams; stream number `streams` has the supplements.

    `total` are the bytes of all files, `live_bytes` those of live and quarantined shards. `ended`: how many
    units these hold to their ends.
    """

    def __init__(self, streams: int) -> None:
        self.streams = streams
        self.total = self.live_bytes = self.ended = 0
        self.num_live = 0  # live and quarantined shards with records
        self.files_in = [0] * (streams + 1)  # numbers with files of each stream
        self._columns = [_Column() for _ in range(streams + 1)]
        self._elders: dict[Name, _Elder] = {}

    # --- reading

    def status(self, number: int) -> Status:
        """The status of a number."""
        j, stream = divmod(number, self.streams + 1)
        rows = self._columns[stream].slice(j, j)
        return Status(int(rows[0]["status"])) if len(rows) else Status.GONE

    def facts(self, number: int) -> ShardFacts:
        """The newest version of a number that has files."""
        row = self._row(number)
        return ShardFacts(*(int(row[name]) for name in _FACTS))

    def is_held(self, number: int) -> bool:
        """Whether a lease names the newest version of a number that has files."""
        return bool(self._row(number)["holds"])

    def needs_mark(self, number: int) -> bool:
        """Whether a retired number needs a mark: a file of it stays, which a start might take for live."""
        return self.is_held(number) or any(name[0] == number for name in self._elders)

    @property
    def is_empty(self) -> bool:
        """Whether no file is left."""
        return not (any(self.files_in) or self._elders)

    def oldest_current(self, stream: int) -> int | None:
        """The first j of a stream that a start might take for live."""
        column = self._columns[stream]
        column.current = column.seek(column.current, _CURRENT)
        return column.base + column.current if column.current < column.size else None

    def oldest_live(self, stream: int) -> int | None:
        """The first j of a stream that is live or quarantined."""
        column = self._columns[stream]
        column.live = column.seek(column.live, _LIVE)
        return column.base + column.live if column.live < column.size else None

    def live_of(self, stream: int) -> Iterator[tuple[int, int]]:
        """(number, allocated bytes) of a stream's live and quarantined shards, oldest first."""
        column = self._columns[stream]
        index = column.live = column.seek(column.live, _LIVE)
        while index < column.size:
            number = (column.base + index) * (self.streams + 1) + stream
            yield number, int(column.rows["allocated"][index])
            index = column.seek(index + 1, _LIVE)

    def live(self) -> Iterator[tuple[int, int]]:
        """Live shards of all streams, in number order. The cost grows with the shards taken."""
        return heapq.merge(*(self.live_of(stream) for stream in range(self.streams + 1)))

    # --- shards come and go

    def load(self, shards: Iterable[tuple[int, ShardFacts, Status]]) -> None:
        """A start found these numbers, with their newest versions."""
        rows, numbers = [], []
        for number, facts, status in shards:
            rows.append((*facts[:-1], 0, facts.version, status))
            numbers.append(number)
        every = np.array(rows, _ROW)
        places, streams = np.divmod(np.array(numbers, np.int64), self.streams + 1)
        for stream, column in enumerate(self._columns):
            own = streams == stream
            if not own.any():
                continue
            last = int(places[own].max())
            if last - int(places[own].min()) > 4 * int(own.sum()) + 64:  # mostly holes
                rest = own & (every["status"] != Status.RETIRED)
                first = int(places[rest].min()) if rest.any() else last + 1
                for i in np.flatnonzero(own & (places < first)).tolist():
                    elder = _Elder(int(every["allocated"][i]), 0)
                    self._keep(numbers[i], int(every["version"][i]), elder)
                own &= places >= first
            self.files_in[stream] = int(own.sum())
            column.base = int(places[own].min()) if own.any() else last + 1
            column.size = last + 1 - column.base
            column.rows = np.zeros(column.size, _ROW)
            column.rows[places[own] - column.base] = every[own]
            live = np.isin(column.rows["status"], _LIVE)
            self.num_live += int((column.rows["records"][live] > 0).sum())
            self.total += int(column.rows["allocated"].sum())
            self.live_bytes += int(column.rows["allocated"][live].sum())
            self.ended += int(column.rows["ended"][live].sum())

    def add(self, number: int, facts: ShardFacts) -> None:
        """A shard was published: its number is above every other of its stream."""
        j, stream = divmod(number, self.streams + 1)
        row = self._columns[stream].append(j)
        row["holds"] = 0
        self.files_in[stream] += 1
        self._set(stream, row, facts, Status.LIVE)

    def add_elder(self, number: int, version: int, allocated: int) -> None:
        """A start found an older version of a number."""
        self._keep(number, version, _Elder(allocated, 0))

    def _keep(self, number: int, version: int, elder: _Elder) -> None:
        self._elders[number, version] = elder
        self.total += elder.allocated

    def replace(self, number: int, facts: ShardFacts, dropped: bool) -> list[Name]:
        """The next version of a quarantined number was published; live, unless its number was retired.
        Returns the names of older versions that are to be unlinked now; others wait for their leases.
        `dropped`: the file of the version before is gone already."""
        row, stream = self._row(number), number % (self.streams + 1)
        status = Status(int(row["status"]))
        name = number, int(row["version"])
        if not dropped:
            self._keep(*name, _Elder(int(row["allocated"]), int(row["holds"])))
        row["holds"] = 0
        self._set(stream, row, facts, Status.LIVE if status in _LIVE else status)
        return self._unheld_elders()

    def set_status(self, number: int, status: Status) -> None:
        """Quarantines, releases or retires a number."""
        self._set(number % (self.streams + 1), self._row(number), None, status)

    def unlinked(self, number: int, version: int) -> None:
        """The files of a version are gone."""
        if elder := self._elders.pop((number, version), None):
            self.total -= elder.allocated
            return
        stream, row = number % (self.streams + 1), self._row(number)
        self._set(stream, row, ShardFacts(0, 0, 0), Status.GONE)
        self.files_in[stream] -= 1

    def forget_gone(self) -> None:
        """Keeps the table small, after shards were unlinked."""
        for stream in range(self.streams + 1):
            self._forget(stream)

    def _forget(self, stream: int) -> None:
        """Forgets the first half of a column if it is GONE, but for few shards that old leases name."""
        column = self._columns[stream]
        half = column.size // 2
        left = np.flatnonzero(column.rows["status"][:half])
        few = len(left) <= min(half // 16, _MOST_LEFT)
        if half > 32 and few and (column.rows["status"][left] == Status.RETIRED).all():
            for i in left.tolist():
                row = column.rows[i]
                number = (column.base + i) * (self.streams + 1) + stream
                elder = _Elder(int(row["allocated"]), int(row["holds"]))
                self._set(
                    stream, row, ShardFacts(0, 0, 0, version=int(row["version"])), Status.GONE
                )
                self._keep(number, int(row["version"]), elder)
                self.files_in[stream] -= 1
            column.drop(half)

    # --- sets and leases

    def select(self, upto: int | None = None) -> ShardSet:
        """The set of all live shards that have records; with `upto`, of those with a smaller j."""
        intervals: list[tuple[int, int, int]] = []
        for stream, column in enumerate(self._columns):
            rows = column.rows[: column.size]
            rows = rows if upto is None else rows[: max(0, upto - column.base)]
            mask = (rows["status"] == Status.LIVE) & (rows["records"] > 0)
            edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)) + column.base
            runs = edges.reshape(-1, 2).tolist()
            intervals += [(stream, first, end - 1) for first, end in runs]
        return self.set_of(tuple(intervals))

    def find(self, intervals: Intervals, retired_too: bool) -> ShardSet | None:
        """The set of exactly these numbers; None unless all are live, or with `retired_too` retired and
        named by a lease."""
        for stream, first, last in intervals:
            if not 0 <= stream <= self.streams or first > last:
                return None
            rows = self._columns[stream].slice(first, last)
            retired = (rows["status"] == Status.RETIRED) & (rows["holds"] > 0) & retired_too
            if (
                len(rows) != last - first + 1
                or not ((rows["status"] == Status.LIVE) | retired).all()
            ):
                return None
        return self.set_of(intervals)

    def hold(self, intervals: Intervals, versions: Iterable[Name]) -> None:
        """A lease names these shards."""
        self._hold(intervals, dict(versions), 1)

    def let_go(self, intervals: Intervals, versions: Iterable[Name]) -> list[Name]:
        """A lease ended. Returns the names of the files that are to be unlinked now."""
        self._hold(intervals, dict(versions), -1)
        names = self._unheld_elders()
        for stream, first, last in intervals:
            column = self._columns[stream]
            rows = column.slice(first, last)
            free = (rows["status"] == Status.RETIRED) & (rows["holds"] == 0)
            for i in np.flatnonzero(free).tolist():
                rows[i]["status"] = Status.UNLINKING
                number = (max(first, column.base) + i) * (self.streams + 1) + stream
                names.append((number, int(rows[i]["version"])))
        return names

    def count(self, *statuses: Status) -> int:
        """How many numbers have one of these statuses."""
        rows = (column.rows["status"][: column.size] for column in self._columns)
        return sum(int(np.isin(each, statuses).sum()) for each in rows)

    def retired_bytes(self, intervals: Intervals) -> int:
        """The bytes of retired shards among these numbers."""
        rows = [self._columns[stream].slice(first, last) for stream, first, last in intervals]
        return sum(int(each["allocated"][each["status"] == Status.RETIRED].sum()) for each in rows)

    def has_quarantined(self, intervals: Intervals) -> bool:
        """Whether any of these numbers is quarantined."""
        rows = (self._columns[stream].slice(first, last) for stream, first, last in intervals)
        return any((each["status"] == Status.QUARANTINED).any() for each in rows)

    def is_current(self, intervals: Intervals, versions: tuple[Name, ...]) -> bool:
        """Whether these are the newest versions of their numbers, and none is quarantined."""
        newest = self.set_of(intervals).versions
        return newest == versions and not self.has_quarantined(intervals)

    def names_any(self, numbers: Iterable[int], intervals: Intervals) -> bool:
        """Whether intervals name any of these numbers."""
        places = [divmod(number, self.streams + 1) for number in numbers]
        return any(s == stream and a <= j <= b for j, stream in places for s, a, b in intervals)

    def unheld(self) -> list[Name]:
        """After a start: retired shards and older versions that no lease names; they are to be unlinked."""
        everything = tuple((s, c.base, c.base + c.size - 1) for s, c in enumerate(self._columns))
        self._hold(everything, {}, 1)
        return self.let_go(everything, ())

    def set_of(self, intervals: Intervals) -> ShardSet:
        """The sums over these numbers, whatever their status."""
        versions: list[Name] = []
        records = data = allocated = digest = 0
        for stream, first, last in intervals:
            rows = self._columns[stream].slice(first, last)
            records += int(rows["records"].sum())
            data += int(rows["data_bytes"].sum())
            allocated += int(rows["allocated"].sum())
            digest += int(rows["digest"].sum())
            for i in np.flatnonzero(rows["version"]).tolist():
                number = (max(first, self._columns[stream].base) + i) * (self.streams + 1) + stream
                versions.append((number, int(rows[i]["version"])))
        return ShardSet(intervals, tuple(versions), records, data, allocated, digest % (1 << 64))

    def _hold(self, intervals: Intervals, versions: dict[int, int], by: int) -> None:
        change = np.uint32(by % (1 << 32))
        for stream, first, last in intervals:
            self._columns[stream].slice(first, last)["holds"] += change
        for name, elder in self._elders.items():  # it is the elder that the lease names
            j, stream = divmod(name[0], self.streams + 1)
            named = any(s == stream and first <= j <= last for s, first, last in intervals)
            if named and versions.get(name[0], 0) == name[1]:
                elder.holds += by
                for row in self._columns[stream].slice(j, j):
                    row["holds"] = (int(row["holds"]) - by) % (1 << 32)

    def _unheld_elders(self) -> list[Name]:
        free = [
            name for name, elder in self._elders.items() if not (elder.holds or elder.unlinking)
        ]
        for name in free:
            self._elders[name].unlinking = True
        return free

    # --- rows

    def _row(self, number: int) -> Any:
        j, stream = divmod(number, self.streams + 1)
        column = self._columns[stream]
        assert column.base <= j < column.base + column.size, f"shard {number} is not in the table"
        return column.rows[j - column.base]

    def _set(self, stream: int, row: Any, facts: ShardFacts | None, status: Status) -> None:
        """Changes a row, and every sum with it."""
        self._count(stream, row, -1)
        if facts is not None:
            for name in _FACTS:
                row[name] = getattr(facts, name)
        row["status"] = status
        self._count(stream, row, 1)

    def _count(self, stream: int, row: Any, by: int) -> None:
        if row["status"] != Status.GONE:
            self.total += by * int(row["allocated"])
        if row["status"] in _LIVE:
            self.num_live += by * bool(row["records"])
            self.live_bytes += by * int(row["allocated"])
            self.ended += by * int(row["ended"])
