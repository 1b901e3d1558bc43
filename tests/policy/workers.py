"""Simulated workers, and the directories that they read listings from: sections 6.1 to 6.4 of the design,
record by record. An object is a tuple of record sizes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from cachecd.model import Cursor, Lane, Shape, Skipped, StreamId
from cachecd.policy import events as ev
from cachecd.policy.values import Head, Rules

OVERHEAD = 1  # bytes of a sidecar


@dataclass(frozen=True)
class Object:
    """`fault`: (whether it may pass, the first record that cannot be read)."""

    etag: int
    records: tuple[int, ...]
    fault: tuple[bool, int] | None = None


@dataclass(eq=False)
class Shard:
    """`records` are (unit, etag, ordinal, size)."""

    before: Cursor
    after: Cursor
    records: tuple[tuple[int, int, int, int], ...]
    skipped: tuple[Skipped, ...]
    ended: int
    intact: bool = True
    sidecar: bool = True

    @cached_property
    def size(self) -> int:
        return OVERHEAD + sum(record[3] for record in self.records)


@dataclass
class Directory:
    """A generation on disk: generation.json, listing.sqlite, shards with their marks, state.json."""

    split: str
    block: int  # the first block's units; each block is twice as large as the one before
    rules: Rules
    shape: Shape | None = None
    keys: list[str] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    first: bool = True
    completed: int = 0
    shards: dict[tuple[int, int], Shard] = field(default_factory=dict)
    bad: dict[tuple[int, int], bool] = field(
        default_factory=dict
    )  # whether it holds an excluded record
    old: set[int] = field(default_factory=set)
    heads: tuple[Head, ...] = ()
    contradiction: str | None = None
    orders: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def order(self, s: int, block: int) -> list[int]:
        """The units of a block that belong to stream s, permuted; the same in every pass."""
        if (s, block) not in self.orders:
            begin = self.ends[block - 1] if block else 0
            units = list(range(begin, self.ends[block]))
            random.Random(self.shape.seed * 1009 + block).shuffle(units)
            places = enumerate(units, begin)
            self.orders[s, block] = [
                u for g, u in places if g // self.shape.stripe % self.shape.streams == s
            ]
        return self.orders[s, block]

    def newest(self) -> dict[int, int]:
        """number -> its newest version."""
        return dict(sorted(self.shards))

    def live(self) -> dict[tuple[int, int], Shard]:
        """The newest version of each number that is not marked as retired."""
        names = [name for name in self.newest().items() if name[0] not in self.old]
        return {name: self.shards[name] for name in names}

    def list(self, keys: list[str], count: int) -> None:
        """Lists so many of the keys; the listing ends if there are no more."""
        known = set(self.keys)
        new = [key for key in keys if key not in known]
        for key in new[:count]:
            self.keys.append(key)
            if len(self.keys) - (self.ends[-1] if self.ends else 0) >= self.block << len(self.ends):
                self.ends.append(len(self.keys))
        if len(new) <= count:
            self.completed += 1
            self.close()

    def close(self) -> None:
        """The listing ended or failed: its block ends here."""
        if len(self.keys) > (self.ends[-1] if self.ends else 0):
            self.ends.append(len(self.keys))
        self.first = False


class Worker:
    """One stream in a worker: writes granted shards from a cursor up to `until`."""

    def __init__(self, world: Any, name: StreamId, cursor: Cursor, until: Cursor) -> None:
        self.world, self.name, self.cursor, self.until = world, name, cursor, until
        self.granted: list[int] = []
        self.draft: Draft | None = None
        self.condemned: dict[int, bool] = {}

    def work(self, steps: int) -> Iterator[ev.Event]:
        """Goes on for some records."""
        for _ in range(steps):
            if self.draft is None:
                if not self.granted:
                    return
                self.draft = Draft(self, self.cursor)
            if not self.draft.step():
                return
            draft, number = self.draft, self.granted[0]
            if draft.is_half():
                yield ev.HalfFull(self.name, number)
            if draft.end:
                shard = draft.shard()
                self.draft = None
                self.granted.pop(0)
                self.cursor = shard.after
                yield self.world.seal(self.name, number, shard)


class Draft:
    """The shard that a worker writes: section 6.3 and 6.4 of the design, record by record."""

    def __init__(self, worker: Worker, cursor: Cursor) -> None:
        self.worker, self.before = worker, cursor
        self.dir, self.s = worker.world.directory(worker.name), worker.name.index
        self.pass_, self.block, self.place = cursor.pass_, cursor.block, cursor.place
        self.lanes = [[lane, 0] for lane in cursor.lanes]  # Lane, bytes given to this shard
        self.records: list[tuple[int, int, int, int]] = []
        self.skipped: list[Skipped] = []
        self.bytes, self.ended, self.end, self.told = 0, 0, "", False

    def _next(self, cursor: Cursor) -> tuple[int, int] | None:
        place = cursor.place
        for block in range(cursor.block, len(self.dir.ends)):
            if place < len(self.dir.order(self.s, block)):
                return block, place
            place = 0
        return None

    def is_half(self) -> bool:
        half = not self.told and 2 * self.bytes >= self.dir.shape.capacity
        self.told = self.told or half
        return half

    def _stop(self, lane: Lane) -> int:
        """The record up to which a unit is read: `until` names it for units that are open there."""
        source = self._source(lane.unit)
        stop = len(source.records) if source and source.etag == lane.etag else 1 << 60
        if self.pass_ == self.worker.until.pass_:
            open_there = [o.record for o in self.worker.until.lanes if o.unit == lane.unit]
            stop = min([stop, *open_there])
        return stop

    def _source(self, unit: int) -> Object | None:
        return self.worker.world.objects(self.worker.name.dataset).get(self.dir.keys[unit])

    def _skip(self, lane: Lane, reason: str, passing: bool) -> None:
        key = self.dir.keys[lane.unit]
        self.skipped.append(Skipped(lane.unit, key, lane.etag, lane.record, reason, passing))

    def _open(self, here: tuple[int, int]) -> None:
        self.block, self.place = here[0], here[1] + 1
        unit = self.dir.order(self.s, here[0])[here[1]]
        source = self._source(unit)
        lane = Lane(*here, unit, source.etag if source else 0, 0)
        if self.dir.keys[unit] in self.worker.world.disk.excluded:
            return
        if source is None:
            self._skip(lane, "gone", True)
        else:
            self.lanes.append([lane, 0])

    def step(self) -> bool:
        """One record, one skipped unit, or the end of the shard. False: it waits for the listing."""
        here = self._next(Cursor(self.pass_, self.block, self.place))
        until = self.worker.until
        may = here and (self.pass_, *here) < (until.pass_, until.block, until.place)
        active = [entry for entry in self.lanes if entry[0].record < self._stop(entry[0])]
        if len(self.lanes) < self.dir.shape.lanes and (may or not here):
            if here:
                self._open(here)
            elif self.dir.first:
                return False
            elif active:
                self._give(active)
            else:
                self.end = "until" if self.lanes else "pass"
        elif active:
            self._give(active)
        else:
            self.end = "until"
        if len(self.skipped) >= 3:
            self.end = "skips"
        return True

    def _give(self, active: list[list[object]]) -> None:
        entry = min(active, key=lambda entry: (entry[1], entry[0]))
        lane = entry[0]
        if self.dir.keys[lane.unit] in self.worker.world.disk.excluded:
            self.lanes.remove(entry)
            return
        source = self._source(lane.unit)
        condemned = self.worker.condemned.get(lane.unit)
        reason, passing = "", True
        if source is None or source.etag != lane.etag:
            reason = "rewritten"
        elif source.fault and source.fault[1] <= lane.record:
            reason, passing = "fault", source.fault[0]
        elif condemned is not None:
            reason, passing = "condemned", condemned
        size = 0 if reason else source.records[lane.record]
        if self.bytes + size > self.dir.shape.capacity - OVERHEAD:
            self.end = "full"
            return
        if reason:
            self._skip(lane, reason, passing)
            self.lanes.remove(entry)
            return
        self.records.append((lane.unit, lane.etag, lane.record, size))
        self.bytes += size
        entry[0] = replace(lane, record=lane.record + 1)
        entry[1] += size
        if entry[0].record == len(source.records):
            self.ended += 1
            self.lanes.remove(entry)

    def shard(self) -> Shard:
        lanes = tuple(sorted(entry[0] for entry in self.lanes))
        after = Cursor(self.pass_, self.block, self.place, lanes)
        return Shard(self.before, after, tuple(self.records), tuple(self.skipped), self.ended)
