"""The shard table of one generation: which shards are live, quarantined or retired, and which files exist
only because a lease names them.

The table is compact (41 bytes for each shard), because a generation may have 100,000 shards. A stream's
shards are an interval of its numbers: each stream has one array, indexed by j minus the first j. Pure.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from cachecd.model import ShardFacts, ShardVersion, shard_number, shard_place
from cachecd.policy.values import Intervals, Lease

_ROW = np.dtype(  # the fields of ShardFacts, then the status
    [
        ("allocated", "<i8"), ("records", "<u4"), ("data_bytes", "<i8"), ("ended", "<u4"),
        ("digest", "<u8"), ("version", "<u4"), ("passed", "<u4"), ("status", "u1"),
    ]
)  # fmt: skip
_NO_FACTS = ShardFacts(0, 0, 0)


class Status(IntEnum):
    """The status of a shard number.

    LIVE: the next lease names the shard. QUARANTINED: the shard is damaged or has an excluded record.
    RETIRING: no later lease names the shard, but a start might still consider it live, because its mark
    or unlink is not durable yet. UNLINKED: no file exists, except files that leases name.
    """

    UNLINKED = 0
    LIVE = 1
    QUARANTINED = 2
    RETIRING = 3


LIVE = (Status.LIVE, Status.QUARANTINED)
CURRENT = (*LIVE, Status.RETIRING)


@dataclass(frozen=True, slots=True)
class ShardSet:
    """Shards that a lease may name. `versions`: the numbers whose version is not 0, ascending."""

    intervals: Intervals
    versions: tuple[ShardVersion, ...]
    records: int
    passed: int
    data_bytes: int
    allocated: int
    digest: int


@dataclass(slots=True)
class _StreamShards:
    """The shards of one stream. Row i, below `end`, is shard `base + i`. Rows before `begin` are
    UNLINKED, and no row before `live` is live."""

    base: int = 0
    begin: int = 0
    live: int = 0
    end: int = 0
    rows: NDArray[np.void] = field(default_factory=lambda: np.zeros(16, _ROW))

    def append(self, j: int) -> None:
        """Adds a row for shard j, which is above all other shards of the stream."""
        self.begin = self.seek(self.begin, CURRENT)
        if self.begin == self.end:
            self.base, self.begin, self.live, self.end = j, 0, 0, 0
        elif j - self.base >= len(self.rows):
            kept, first = self.rows[self.begin : self.end], self.begin
            self.base, self.begin, self.live = self.base + first, 0, max(0, self.live - first)
            self.rows = np.zeros(2 * (j + 1 - self.base), _ROW)
            self.rows[: len(kept)] = kept
        self.end = j + 1 - self.base

    def load(self, js: list[int], rows: NDArray[np.void]) -> None:
        """Makes the rows of these shards, which are in ascending order. The stream has no rows yet."""
        self.base, self.end = js[0], js[-1] + 1 - js[0]
        self.rows = np.zeros(self.end + 16, _ROW)
        self.rows[np.array(js) - self.base] = rows

    def seek(self, row: int, statuses: tuple[Status, ...]) -> int:
        """Returns the first row from `row` on with one of these statuses, or `end`."""
        status = self.rows["status"]
        while row < self.end and int(status[row]) not in statuses:
            row += 1
        return row

    def slice(self, first: int, last: int) -> NDArray[np.void]:
        """Returns the slice of the existing rows of shards first to last."""
        return self.rows[max(0, first - self.base) : max(0, last + 1 - self.base)]


@dataclass(slots=True)
class _Old:
    """A file that exists only because a lease names it: a retired shard, or an older version of a
    shard."""

    allocated: int
    unlinking: bool = False


_NO_FILE = _Old(0)


class ShardTable:
    """All shards of a generation with `streams` streams. Stream number `streams` has the supplements.

    `total`: the bytes of all files. `live_bytes`: the bytes of live and quarantined shards. `num_live`:
    how many of these shards have records. `records`: the number of their records. `ended`: how many units
    end in them.
    """

    def __init__(self, streams: int) -> None:
        self.streams = streams
        self.total = self.live_bytes = self.num_live = self.records = self.ended = 0
        self._columns = [_StreamShards() for _ in range(streams + 1)]
        self._old: dict[ShardVersion, _Old] = {}
        self._leases: dict[str, tuple[Intervals, dict[int, int]]] = {}
        self._selected: ShardSet | None = None  # of all live shards, until one changes

    # --- reading

    def status(self, number: int) -> Status:
        column, row = self._find(number)
        in_column = column.begin <= row < column.end
        return Status(int(column.rows["status"][row])) if in_column else Status.UNLINKED

    def facts(self, number: int) -> ShardFacts:
        """Returns the facts of the newest version of a number, which is not UNLINKED."""
        column, row = self._find(number)
        assert column.begin <= row < column.end, f"shard {number} is not in the table"
        return ShardFacts(*column.rows[row].item()[:-1])

    @property
    def is_empty(self) -> bool:
        streams = range(self.streams + 1)
        return not self._old and all(self.oldest_current(stream) is None for stream in streams)

    def count(self, *statuses: Status) -> int:
        return sum(int(np.isin(each.rows["status"], statuses).sum()) for each in self._columns)

    @property
    def num_kept(self) -> int:
        """The number of retired shards and older versions that exist only because leases name them."""
        return len(self._old)

    @property
    def unlinks(self) -> bool:
        """Whether files that no lease names any more are being unlinked."""
        return any(old.unlinking for old in self._old.values())

    def kept_bytes(self) -> dict[str, int]:
        """Returns the bytes of retired shards and older versions that each lease names. Sorts these files
        once for all leases: the daemon counts the bytes each second."""
        files = sorted(
            (*shard_place(self.streams, number), old.allocated)
            for (number, version), old in self._old.items()
            if not version
        )
        sums = [0, *accumulate(allocated for _, _, allocated in files)]
        kept = {}
        for lease, (intervals, versions) in self._leases.items():
            total = 0
            for stream, first, last in intervals:
                begin, end = (
                    bisect_left(files, (stream, first)),
                    bisect_left(files, (stream, last + 1)),
                )
                total += sums[end] - sums[begin]
            for number, version in versions.items():
                first_file = self._old.get((number, 0), _NO_FILE)
                named_file = self._old.get((number, version), _NO_FILE)
                if first_file is not named_file and self.is_named_by(lease, number):
                    total += named_file.allocated - first_file.allocated
            kept[lease] = total
        return kept

    def oldest_current(self, stream: int) -> int | None:
        """Returns the first j of a stream that a start might consider live."""
        column = self._columns[stream]
        column.begin = column.seek(column.begin, CURRENT)
        return column.base + column.begin if column.begin < column.end else None

    def oldest_live(self, stream: int) -> int | None:
        """Returns the first j of a stream that is live or quarantined."""
        column = self._columns[stream]
        column.live = column.seek(column.live, LIVE)
        return column.base + column.live if column.live < column.end else None

    def live_of(self, stream: int) -> Iterator[tuple[int, int]]:
        """Yields (number, allocated bytes) of a stream's live and quarantined shards, oldest first."""
        column = self._columns[stream]
        row = column.live = column.seek(column.live, LIVE)
        while row < column.end:
            number = shard_number(self.streams, stream, column.base + row)
            yield number, int(column.rows["allocated"][row])
            row = column.seek(row + 1, LIVE)

    def live(self) -> Iterator[tuple[int, int]]:
        """Yields the live shards of all streams, in number order. The cost grows with the number of
        shards taken."""
        return heapq.merge(*(self.live_of(stream) for stream in range(self.streams + 1)))

    def current_names(self) -> tuple[ShardVersion, ...]:
        """Returns (number, version) of all live and quarantined shards with records."""
        names: list[ShardVersion] = []
        for stream, column in enumerate(self._columns):
            rows = column.rows
            for row in np.flatnonzero(
                np.isin(rows["status"], LIVE) & (rows["records"] > 0)
            ).tolist():
                number = shard_number(self.streams, stream, column.base + row)
                names.append((number, int(rows["version"][row])))
        return tuple(sorted(names))

    def has(self, number: int, version: int) -> bool:
        """Whether the bytes of a version are in `total`."""
        is_current = self.status(number) in CURRENT and self.facts(number).version == version
        return is_current or (number, version) in self._old

    # --- the life of a shard

    def load(self, shards: Iterable[tuple[int, ShardFacts, Status]]) -> None:
        """Adds the shards that a start found, in number order. Adds all shards of a stream at once,
        because adding 100,000 shards one by one takes a second."""
        by_stream: list[list[tuple[int, ...]]] = [[] for _ in self._columns]
        for number, facts, status in shards:
            stream, j = shard_place(self.streams, number)
            by_stream[stream].append((j, *facts, status))
        for column, of_stream in zip(self._columns, by_stream, strict=True):
            if of_stream:
                rows = np.array([row[1:] for row in of_stream], _ROW)
                column.load([row[0] for row in of_stream], rows)
                live = rows[np.isin(rows["status"], LIVE)]
                self.total += int(rows["allocated"].sum())
                self.live_bytes += int(live["allocated"].sum())
                self.num_live += int((live["records"] > 0).sum())
                self.records += int(live["records"].sum())
                self.ended += int(live["ended"].sum())

    def add(self, number: int, facts: ShardFacts, status: Status = Status.LIVE) -> None:
        """Adds a published shard. Its number is above all other numbers of its stream."""
        stream, j = shard_place(self.streams, number)
        self._columns[stream].append(j)
        self._put(number, facts, status)

    def set_status(self, number: int, status: Status) -> None:
        """Sets the status of a number to LIVE, QUARANTINED or RETIRING."""
        self._put(number, self.facts(number), status)

    def replace(self, number: int, facts: ShardFacts, dropped: bool) -> None:
        """Replaces a quarantined number with its next version, which is published and live. `dropped`:
        the file of the previous version is removed already."""
        before = self.facts(number)
        if not dropped:
            self.keep(number, before.version, before.allocated)
        self._put(number, facts, Status.LIVE)

    def keep(self, number: int, version: int, allocated: int) -> None:
        """Adds a file that exists only as long as a lease names it: an older version, or a retired shard
        that was found with its mark."""
        self._old[number, version] = _Old(allocated)
        self.total += allocated

    def needs_mark(self, number: int) -> bool:
        """Whether a retired number needs a mark, because a file remains that a start might consider
        live."""
        held = self.is_leased(number, self.facts(number).version)
        return held or any(name[0] == number for name in self._old)

    def marked(self, number: int) -> None:
        facts = self.facts(number)
        self._put(number, _NO_FACTS, Status.UNLINKED)
        self.keep(number, facts.version, facts.allocated)

    def take_unleased(self) -> list[ShardVersion]:
        """Removes and returns the files that no lease names any more. The caller must unlink them now."""
        names = [n for n, old in self._old.items() if not (old.unlinking or self.is_leased(*n))]
        for name in names:
            self._old[name].unlinking = True
        return names

    def unlinked(self, number: int, version: int) -> None:
        """Notes that the files of a version are removed."""
        if old := self._old.pop((number, version), None):
            self.total -= old.allocated
        else:
            self._put(number, _NO_FACTS, Status.UNLINKED)

    # --- sets and leases

    def select(self, upto: int | None = None) -> ShardSet:
        """Returns the set of all live shards with records. With `upto`, only shards with a smaller j."""
        if upto is None and self._selected is not None:
            return self._selected
        intervals: list[tuple[int, int, int]] = []
        passed = 0  # includes shards without a record
        for stream, column in enumerate(self._columns):
            rows = column.slice(0, column.base + column.end if upto is None else upto - 1)
            passed += int(rows["passed"][rows["status"] == Status.LIVE].sum())
            mask = (rows["status"] == Status.LIVE) & (rows["records"] > 0)
            edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)) + column.base
            runs = edges.reshape(-1, 2).tolist()
            intervals += [(stream, first, end - 1) for first, end in runs]
        chosen = replace(self.set_of(tuple(intervals)), passed=passed)
        self._selected = chosen if upto is None else self._selected
        return chosen

    def find(self, intervals: Intervals) -> ShardSet | None:
        """Returns the set of these numbers, or None unless all of them are live."""
        if self._selected is not None and self._selected.intervals == intervals:
            return self._selected
        for stream, first, last in intervals:
            if not 0 <= stream <= self.streams or first > last:
                return None
            rows = self._columns[stream].slice(first, last)
            if len(rows) != last - first + 1 or not (rows["status"] == Status.LIVE).all():
                return None
        return self.set_of(intervals)

    def set_of(self, intervals: Intervals) -> ShardSet:
        """Returns the set of these numbers, without UNLINKED shards."""
        versions: list[ShardVersion] = []
        records = passed = data = allocated = digest = 0
        for stream, first, last in intervals:
            column = self._columns[stream]
            rows = column.slice(first, last)
            records += int(rows["records"].sum())
            passed += int(rows["passed"].sum())
            data += int(rows["data_bytes"].sum())
            allocated += int(rows["allocated"].sum())
            digest += int(rows["digest"].sum())
            for row in np.flatnonzero(rows["version"]).tolist():
                number = shard_number(self.streams, stream, max(first, column.base) + row)
                versions.append((number, int(rows["version"][row])))
        versions.sort()  # by number; they were collected by stream
        digest %= 1 << 64
        return ShardSet(intervals, tuple(versions), records, passed, data, allocated, digest)

    def has_quarantined(self, intervals: Intervals) -> bool:
        rows = (self._columns[stream].slice(first, last) for stream, first, last in intervals)
        return any((each["status"] == Status.QUARANTINED).any() for each in rows)

    def hold(self, lease: Lease) -> None:
        self._leases[lease.id] = lease.intervals, dict(lease.versions)

    def let_go(self, lease: Lease) -> None:
        self._leases.pop(lease.id, None)

    def is_leased(self, number: int, version: int) -> bool:
        """Whether a lease names this version."""
        return any(self.names(lease, number, version) for lease in self._leases)

    def keepers(self, numbers: Iterable[int]) -> list[str]:
        """Returns the leases that name one of these numbers, or a file that exists only for leases."""
        names = [*self._old, *((number, self.facts(number).version) for number in numbers)]
        return [lease for lease in self._leases if any(self.names(lease, *name) for name in names)]

    def names(self, lease: str, number: int, version: int) -> bool:
        """Whether this lease names this version."""
        return self._leases[lease][1].get(number, 0) == version and self.is_named_by(lease, number)

    def is_named_by(self, lease: str, number: int) -> bool:
        """Whether this lease names a version of this number."""
        stream, j = shard_place(self.streams, number)
        return any(s == stream and a <= j <= b for s, a, b in self._leases[lease][0])

    # --- rows

    def _find(self, number: int) -> tuple[_StreamShards, int]:
        stream, j = shard_place(self.streams, number)
        return self._columns[stream], j - self._columns[stream].base

    def _put(self, number: int, facts: ShardFacts, status: Status) -> None:
        """Changes a row, and updates every sum."""
        self._selected = None
        column, row = self._find(number)
        *before, was = column.rows[row].item()
        self._count(-1, ShardFacts(*before), was)
        column.rows[row] = (*facts, status)
        self._count(1, facts, status)

    def _count(self, sign: int, facts: ShardFacts, status: int) -> None:
        self.total += sign * facts.allocated
        if status in LIVE:
            self.num_live += sign * bool(facts.records)
            self.live_bytes += sign * facts.allocated
            self.records += sign * facts.records
            self.ended += sign * facts.ended
