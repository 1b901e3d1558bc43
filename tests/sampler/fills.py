"""Streams of units in memory, and a slow model of what a stream's shards hold."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, cast

from cachecd.errors import UnitError
from cachecd.model import Cursor, Lane, SkippedRecords, Unit, etag_hash
from cachecd.sampler import filling
from cachecd.sampler.draft import Draft, skipped_bytes
from cachecd.sampler.filling import Filling

CAPACITY = 100
SKIPS = 3 * skipped_bytes("0")  # a shard ends with the third skipped unit


@dataclass(frozen=True)
class Source:
    """A unit: the sizes of its records, the record at which it fails, if it does, and the `odd` records,
    which cannot be used."""

    records: tuple[int, ...]
    fails_at: int | None = None
    hand: int = 0  # what it counts in hand
    odd: frozenset[int] = frozenset()

    @property
    def size(self) -> int:
        return sum(self.records)


@dataclass
class FakeDraft:
    """A shard that is full by the sizes of its records alone."""

    shard: list[tuple[int, int]] = field(default_factory=list)
    num_bytes: int = 0
    full: bool = False
    odd: dict[int, int] = field(default_factory=dict)  # by unit, how many records were passed over

    @property
    def ordinals(self) -> int:
        return self.records + sum(self.odd.values())

    def pop_passed(self, unit: Unit) -> list[SkippedRecords]:
        count = self.odd.get(unit.number, 0)
        return [SkippedRecords("odd", count, ())] if count else []

    @property
    def records(self) -> int:
        return len(self.shard)

    def add(self, size: int, unit: int, ordinal: int) -> bool:
        self.full = self.num_bytes + size > CAPACITY
        if not self.full:
            self.num_bytes += size
            self.shard.append((unit, ordinal))
        return not self.full


class Fakes:
    """Supplies units from memory, and counts how often each record was read."""

    def __init__(self, sources: list[Source]) -> None:
        self.sources = sources
        self.units: list[Unit] = []
        self.read: list[tuple[int, int]] = []
        self.open: set[int] = set()
        self.most_in_hand = 0
        self.found: tuple[str, int] | None = None
        self.left: list[int] = []

    def add(self, unit: Unit) -> int:
        self.units.append(unit)
        return len(self.units) - 1

    def refusal(self, unit: Unit) -> str | None:
        return None

    def in_hand(self, unit: Unit) -> int:
        return self.sources[unit.number].hand

    async def pour(self, handle: int, draft: Draft) -> AsyncGenerator[tuple[int, int], int | None]:
        unit = self.units[handle]
        source, shard = self.sources[unit.number], cast(FakeDraft, draft)
        self.open.add(handle)
        self.most_in_hand = max(
            self.most_in_hand, sum(self.sources[self.units[h].number].hand for h in self.open)
        )
        try:
            for ordinal, size in enumerate(source.records[unit.record :], unit.record):
                if source.fails_at == ordinal:
                    raise UnitError(f"bad record {ordinal}")
                self.read.append((unit.number, ordinal))
                position = ordinal, sum(source.records[:ordinal])
                yield position
                if ordinal in source.odd:
                    shard.odd[unit.number] = shard.odd.get(unit.number, 0) + 1
                    continue
                while not shard.add(size, unit.number, ordinal):
                    yield position
        finally:
            self.open.discard(handle)

    def work(self, unit: Unit) -> None:
        """Nobody watches."""

    def reached(self, handle: int, position: tuple[int, int]) -> None:
        assert handle in self.open

    def leave(self, handle: int, error: UnitError | None = None) -> None:
        self.left.append(handle)

    async def current_version(self, key: str) -> tuple[str, int]:
        if self.found is None:
            raise UnitError("not found")
        return self.found

    def after_step(self) -> None:
        """Nobody listens."""


def unit_of(number: int, source: Source, etag: str = "") -> Unit:
    return Unit(number, str(number), source.size, etag)


@dataclass
class Shard:
    records: list[tuple[int, int]]
    skipped: list[tuple[int, int]]
    after: Cursor
    end: str
    ended: int = 0


class Stream:
    """A stream over blocks of units, fed in pages."""

    def __init__(
        self,
        blocks: list[list[Source]],
        lanes: int,
        cursor: Cursor = Cursor(),  # noqa: B008 frozen
        until: Cursor | None = None,
        page: int = 1000,
        supply: Fakes | None = None,
    ) -> None:
        self.sources = [source for block in blocks for source in block]
        self.draft = FakeDraft()
        self.supply = supply or Fakes(self.sources)
        units = iter(enumerate(self.sources))
        self.pages: list[tuple[int, int, list[Unit]]] = []
        for number, block in enumerate(blocks):
            listed = [unit_of(*next(units)) for _ in block]
            for at in range(0, len(block), page):
                self.pages.append((number, at, listed[at : at + page]))
        self.pages = [
            (block, at, units) for block, at, units in self._rest(cursor, self.pages) if units
        ]
        of_lanes = [unit_of(lane.unit, self.sources[lane.unit]) for lane in cursor.lanes]
        self.filling = Filling(self.supply, lanes, cursor, of_lanes, until, SKIPS)

    @staticmethod
    def _rest(cursor: Cursor, pages: list[tuple[int, int, list[Unit]]]) -> Any:
        for block, at, units in pages:
            if block == cursor.block:
                skip = max(0, cursor.place - at)
                yield block, at + skip, units[skip:]
            elif block > cursor.block:
                yield block, at, units

    async def shard(self) -> Shard:
        draft = self.draft
        draft.shard, draft.num_bytes, draft.full, draft.odd = [], 0, False, {}
        end = "waits"
        while end == "waits":
            end = await self.filling.fill(cast(Draft, draft))
            if end == "waits":
                if not self.pages:
                    self.filling.feed(0, 0, [], "end")
                    continue
                block, at, units = self.pages.pop(0)
                more = "listed" if self.pages else "end"
                self.filling.feed(block, at, units, more)
        part = self.filling.shard
        assert part is not None
        skipped = [(one.unit, one.record) for one in part.skipped]
        return Shard(draft.shard, skipped, self.filling.cursor(), end, part.ended)

    async def shards(self) -> list[Shard]:
        found = []
        while not found or found[-1].end not in ("pass", "until"):
            found.append(await self.shard())
        return found


def slow(blocks: list[list[Source]], lanes: int, until: Cursor | None = None) -> list[Shard]:
    """The rule, as plainly as it can be said: one pass from its start."""
    places = [(b, p) for b, block in enumerate(blocks) for p in range(len(block))]
    sources = [source for block in blocks for source in block]
    todo = list(enumerate(places))
    stops = {lane.unit: lane.record for lane in until.lanes} if until else {}
    limit = (until.block, until.place) if until else (1 << 30, 0)
    # [number, next record, bytes of this shard, whether it was opened in this shard]
    open_lanes: list[list[int]] = []
    opened, shards = (0, 0), []

    def counts(number: int) -> int:
        return 0 if stops.get(number) == 0 else sources[number].hand

    def fault(number: int, record: int) -> bool:
        return sources[number].fails_at == record

    while not shards or shards[-1].end not in ("pass", "until"):
        records: list[tuple[int, int]] = []
        skipped: list[tuple[int, int]] = []
        size, ended, end = 0, 0, ""
        for lane in open_lanes:
            lane[2] = lane[3] = 0
        while not end:
            active = [lane for lane in open_lanes if lane[1] < stops.get(lane[0], 1 << 30)]
            hand = sum(sources[lane[0]].hand for lane in active)
            room = len(open_lanes) < lanes and (
                not active or hand + (counts(todo[0][0]) if todo else 0) <= filling.IN_HAND
            )
            if room and todo and todo[0][1] < limit:
                number, (block, place) = todo.pop(0)
                opened = block, place + 1
                open_lanes.append([number, 0, 0, 1])
                continue
            if not active:
                end = "until" if open_lanes or todo else "pass"
                continue
            lane = min(active, key=lambda lane: (lane[2], places[lane[0]]))
            number, record = lane[0], lane[1]
            is_odd = record in sources[number].odd
            if fault(number, record):  # at once where it is the first; else seen below
                open_lanes.remove(lane)
                skipped.append((number, record))
            elif not is_odd and size + sources[number].records[record] > CAPACITY:
                end = "full"
            else:
                if not is_odd:
                    size += sources[number].records[record]
                    records.append((number, record))
                    lane[2] += sources[number].records[record]
                lane[1] = record + 1
                if lane[1] == len(sources[number].records):
                    open_lanes.remove(lane)
                    if lane[3] and not lane[2]:
                        skipped.append((number, 0))
                    else:
                        ended += 1
                elif fault(number, lane[1]):  # the next record is read before it is written
                    open_lanes.remove(lane)
                    skipped.append((number, lane[1]))
                    ended += lane[2] > 0
            if len(skipped) == 3 and not end:
                end = "skips"
        cursor = Cursor(
            0,
            *opened,
            tuple(
                Lane(
                    *places[number],
                    number,
                    etag_hash(""),
                    sources[number].size,
                    record,
                    sum(sources[number].records[:record]),
                )
                for number, record, *_ in open_lanes
            ),
        )
        shards.append(Shard(records, skipped, cursor, end, ended))
    return shards
