"""A generation: its listing, its streams and its shards, and how shards are removed. Pure.

A shard is removed in two steps. First it is retired: no later lease names it. If no lease names it, it is
unlinked at once. Otherwise it is marked, and unlinked when its last lease ends. The stream's `until`
depends on the shard, and moves only when the mark or the unlink is durable. The heads of all streams are
written before an unlink, because a stream may have no shard left whose sidecar has its head.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from cachecd.model import Cursor, Shape, ShardVersion, StreamId, shard_place
from cachecd.policy import commands as do
from cachecd.policy.events import GenerationFound, Listed, ShardSealed
from cachecd.policy.pause import Pause
from cachecd.policy.shard_table import ShardTable, Status
from cachecd.policy.streams import Blocks, Stream
from cachecd.policy.supplements import Supplements
from cachecd.policy.values import Head

_TRIAL = 1000  # records by which a schema is judged
_STATUS = {"live": Status.LIVE, "lost": Status.LIVE}
_STATUS |= {"damaged": Status.QUARANTINED, "excluded": Status.QUARANTINED}


@dataclass(slots=True)
class Repair:
    """A quarantined number that needs a next version. `damaged`: it must be fetched again. `excluded`: it
    has an excluded record, and a local copy suffices. `marked`: the mark of the damage is durable, or no
    mark is needed. `retire`: why the number is retired when the next version is made, or ""."""

    excluded: bool = False
    damaged: bool = False
    marked: bool = False
    retire: str = ""
    pause: Pause = field(default_factory=Pause)


class Generation:
    """The state of one generation's directory. `shape` is None until it is fixed; streams and table exist
    only then. Commands are appended to `out`."""

    def __init__(
        self, start: GenerationFound, is_configured: bool, footprint: int, out: list[do.Command]
    ) -> None:
        self.id, self.split, self.is_configured = start.generation, start.split, is_configured
        self.damaged = start.damaged  # why it is never leased, and is retired first
        self.footprint = footprint
        self.shape: Shape | None = None
        self.blocks = Blocks(Shape(1, 1, 1, 1, 0))
        self.table = ShardTable(1)
        self.streams: list[Stream] = []
        self.supplements = Supplements()
        self.repairs: dict[int, Repair] = {}  # by number
        # The shards whose next version is being made, with the bytes reserved: few at a time.
        self.remaking: dict[int, tuple[do.RemakeShard, int]] = {}
        self.units = self.completed = self.num_retired = self.source_bytes = 0
        self.reason = ""
        self.contradiction = start.contradiction
        self._seen: dict[int, ShardSealed] = {}  # by number, until the schema is judged
        self.writes_shape = False
        self.has_resumed = False  # its streams began at the position of a resumed run
        self._out = out
        self._lost: list[int] = []
        if start.shape is not None:
            self._start(start, start.shape)

    def _start(self, start: GenerationFound, shape: Shape) -> None:
        self.fix(shape)
        *heads, supplements = start.heads
        for stream, head in zip(self.streams, heads, strict=True):
            stream.next = stream.behind = head.next
            stream.cursor = head.cursor
        self.supplements.next = supplements.next
        shards = sorted(start.shards)
        self.table.load((n, facts, _STATUS[s]) for n, facts, s, _ in shards if s != "old")
        for number, facts, status, elders in shards:
            for version, allocated in elders:
                self.table.keep(number, version, allocated)
            if status == "old":
                self.table.keep(number, facts.version, facts.allocated)
            elif status == "lost":
                self._lost.append(number)
            elif status in ("excluded", "damaged"):
                self.repairs[number] = Repair(status == "excluded", status == "damaged", True)

    def note_schema(self, sealed: ShardSealed) -> None:
        """Keeps a sealed shard until the schema is judged."""
        if self.contradiction is None and sealed.stream.index < len(self.streams):
            self._seen[sealed.number] = sealed

    def judge(self, shape: Shape, first: int) -> None:
        """Judges the schema by the first 1,000 records, in the order of the shards' numbers. Fewer
        records suffice if no more shards are made, or if the shards judged so far have `first` bytes. A
        stream that may wait for the listing need not have a shard yet."""
        fits = misfits = size = 0
        misfit = ""
        more = self.reserved or not (self._seen or self.table.num_live)
        for j in itertools.count():
            is_last = True
            for stream in self.streams:
                if sealed := self._seen.get(shape.number(stream.index, j)):
                    fits, misfits = fits + sealed.facts.records, misfits + sealed.misfits
                    size, misfit = size + sealed.facts.allocated, misfit or sealed.misfit
                    is_last = False
                elif j < stream.next:  # before the start
                    is_last = False
                elif more and stream.feeds and not self.blocks.is_growing:
                    return
                if fits + misfits >= _TRIAL:
                    break
            if fits + misfits >= _TRIAL or size >= first:
                break
            if is_last and more and self.blocks.is_growing:
                return
            if is_last:
                break
        self._seen.clear()
        self.contradiction = ""
        if misfits > fits:
            seen = fits + misfits
            self.contradiction = (
                f"{misfits} of the first {seen} records contradict the schema: {misfit}"
            )
        self._out.append(do.WriteJudgement(self.id, self.contradiction))

    def started(self) -> None:
        """Ends a start: unlinks files that no lease names, and retires shards whose sidecar is lost."""
        self.unlink_unleased()
        for number in self._lost:
            self.lose(number)

    def fix(self, shape: Shape, begin: int = 0) -> None:
        """Makes the streams, after the shape is durable. The streams begin at place `begin`, modulo the
        number of listed units."""
        self.shape, self.table = shape, ShardTable(shape.streams)
        self.blocks = Blocks(shape, self.blocks.ends, self.blocks.is_growing)
        self.streams = [Stream(index, self.blocks) for index in range(shape.streams)]
        if begin and self.units:
            for stream in self.streams:
                stream.cursor = self.blocks.cursor_at(stream.index, begin % self.units)

    def listed(self, event: Listed, awaits_classes: bool) -> None:
        """Handles Listed."""
        self.blocks.is_growing = event.first
        self.blocks.ends = () if event.first and awaits_classes else event.ends
        self.units, self.completed, self.reason = event.units, event.completed, event.reason
        self.source_bytes = event.size
        for stream in self.streams:
            stream.changed()

    # --- figures

    @property
    def reserved(self) -> int:
        """Bytes of granted and sealed shards that are not published yet."""
        shards = sum(stream.reserved for stream in self.streams) + self.supplements.reserved
        again = sum(reserved for _, reserved in self.remaking.values())
        return shards * self.footprint + again

    @property
    def is_fresh(self) -> bool:
        """Whether no shard is sealed yet, and no run has resumed."""
        sealed = (s.next or (s.sealed and not s.closing) for s in self.streams)
        return not (self.has_resumed or any(sealed))

    @property
    def occupied(self) -> int:
        return self.table.total + self.reserved

    def may_lease(self, split: str) -> bool:
        """Whether a set of a dataset with this split may have shards of this generation."""
        return self.split == split and not self.damaged and self.contradiction == ""

    @property
    def is_whole(self) -> bool:
        """Whether every stream is whole: it has no unit to fetch until a shard is retired."""
        return self.shape is not None and all(map(self.is_whole_stream, self.streams))

    def is_whole_stream(self, stream: Stream) -> bool:
        """Whether a stream has reached `until`, and all of its shards are published."""
        return not (self.blocks.is_growing or stream.feeds) and self.is_settled(stream)

    def is_settled(self, stream: Stream) -> bool:
        """Whether `until` matches the live shards of a stream: no shard is being retired or read."""
        return self.table.oldest_live(stream.index) == (stream.tail and stream.tail[0])

    @property
    def estimate(self) -> float:
        """Estimates the bytes of the shards of all listed units, from the current bytes per unit."""
        lanes = self.blocks.shape.lanes * self.blocks.shape.streams
        # At most this many units began before the live shards.
        ended = max(0, self.table.ended - lanes)
        return self.units * self.table.live_bytes / ended if ended else math.inf

    @property
    def contradicted(self) -> str:
        """Returns why nothing is fetched or leased, if most of the first records contradict the schema,
        else ""."""
        if not self.contradiction:
            return ""
        name = self.id.dataset
        return (
            f"{name}: {self.contradiction}. Correct the source or the transform, and raise "
            f"datasets.{name}.generation; or make one dataset for each kind of record"
        )

    @property
    def source_records(self) -> int:
        """Estimates the number of usable records of all listed units, from the live shards. 0 if
        unknown."""
        if not (self.completed and self.table.records and math.isfinite(self.estimate)):
            return 0
        if self.is_whole:
            return self.table.records
        return round(self.estimate * self.table.records / self.table.live_bytes)

    @property
    def coverage(self) -> float:
        """The share of units that were cached at least once, from 0 to 1. An open unit counts by its
        bytes."""
        covered = sum(self.blocks.covered(stream.index, stream.tip) for stream in self.streams)
        return min(1.0, covered / self.units) if self.units else 0.0

    @property
    def place(self) -> int:
        """The smallest place of all streams, counted across passes."""
        places = (self.blocks.place(s.index, s.cursor, self.units) for s in self.streams)
        return min(places, default=0)

    def stream(self, name: StreamId) -> Stream | None:
        """Returns a stream by name, or None for the supplements."""
        return self.streams[name.index] if name.index < len(self.streams) else None

    def stream_id(self, index: int) -> StreamId:
        return StreamId(self.id.dataset, self.id.name, index)

    # --- removing shards

    def retire(self, numbers: Iterable[int], why: str) -> None:
        """Retires shards: no later lease names them. A shard that is being replaced is retired after the
        replacement. `why`: the rule, in words."""
        marks: list[ShardVersion] = []
        free: list[ShardVersion] = []
        for number in numbers:
            if number in self.remaking:
                self.repairs[number].retire = why
                continue
            self.repairs.pop(number, None)
            self.table.set_status(number, Status.RETIRING)
            self.num_retired += 1
            name = number, self.table.facts(number).version
            (marks if self.table.needs_mark(number) else free).append(name)
        if marks:
            self._out.append(do.MarkRetired(self.id, tuple(marks), why))
        if free:
            self.unlink(free, why)

    def retire_oldest(self, least: float, why: str) -> int:
        """Retires the oldest shards until they have at least `least` bytes, or all shards. Returns their
        bytes."""
        retired, numbers = 0, []
        for number, allocated in self.table.live():
            if retired >= least:
                break
            retired += allocated
            numbers.append(number)
        self.retire(numbers, why)
        return retired

    def lose(self, number: int) -> None:
        """Retires a shard whose sidecar is lost, with the older shards of its stream, so that the stream
        fetches these records again at once. A supplement is retired alone."""
        stream, _ = shard_place(self.table.streams, number)
        shards = [each for each, _ in self.table.live_of(stream) if each <= number]
        if stream == self.table.streams:
            shards = [each for each in shards if each == number]
        self.retire(shards, f"the sidecar of shard {number} is damaged or missing")

    def will_retire(self, number: int) -> bool:
        """Whether a shard that is being replaced will be retired after the replacement."""
        return number in self.repairs and bool(self.repairs[number].retire)

    def knows(self, number: int, version: int) -> bool:
        """Whether the bytes of a version are counted: the version is in the table, or has reserved
        room."""
        if self.shape is None:
            return False
        index, j = self.blocks.shape.split(number)
        if index == self.table.streams:
            is_made = bool(self.supplements.reserved) and j == self.supplements.next
        else:
            is_made = self.streams[index].next <= j < self.streams[index].wanted
        return is_made or number in self.remaking or self.table.has(number, version)

    def retire_supplements(self) -> bool:
        """Retires supplements before a stream publishes its next shard. Returns True once no supplement is
        left."""
        index = self.table.streams
        supplements = [number for number, _ in self.table.live_of(index)]
        self.retire(
            supplements, "a stream publishes its next shard, which may have the same records"
        )
        return self.table.oldest_current(index) is None and not self.supplements.reserved

    def marked(self, names: Iterable[ShardVersion]) -> None:
        for number, _ in names:
            self.table.marked(number)
        self.unlink_unleased()

    def unlink_unleased(self) -> None:
        """Unlinks the files that no lease names any more."""
        if names := self.table.take_unleased():
            self.unlink(names)

    def unlink(self, names: Iterable[ShardVersion] = (), why: str = "") -> None:
        """Unlinks files, after the heads of all streams are written."""
        heads = [Head(stream.next, stream.cursor) for stream in self.streams]
        heads.append(Head(self.supplements.next, Cursor()))
        known = () if self.damaged else tuple(heads)
        self._out.append(do.Unlink(self.id, known, tuple(names), why))

    def unlinked(self, names: Iterable[ShardVersion]) -> None:
        for name in names:
            self.table.unlinked(*name)

    def note_oldest(self) -> None:
        """Sets the oldest shard of each stream, and the cursor before it."""
        for stream in self.streams:
            stream.note_oldest(self.table.oldest_current(stream.index))
            oldest = stream.oldest
            known = stream.tail and stream.tail[0]
            # A shard that is being retired may lose its files at any time.
            stays = oldest == self.table.oldest_live(stream.index)
            if oldest is None or not stays or oldest in (known, stream.reading_tail):
                continue
            number = self.blocks.shape.number(stream.index, oldest)
            if not self.will_retire(number):
                stream.reading_tail = oldest
                version = self.table.facts(number).version
                self._out.append(do.ReadCursor(self.id, number, version))

    def cursor_read(self, number: int, before: Cursor | None) -> None:
        """Handles CursorRead: the cursor before a shard, from its sidecar; None if the disk refused to
        read it."""
        index, j = self.blocks.shape.split(number)
        if index == len(self.streams):
            return  # nothing needs the cursor of a supplement
        stream = self.streams[index]
        if stream.reading_tail == j:
            stream.reading_tail = None
        if before is not None and stream.oldest is not None and j <= stream.oldest:
            stream.tail = max(stream.tail or (j, before), (j, before), key=lambda tail: tail[0])
            stream.changed()
