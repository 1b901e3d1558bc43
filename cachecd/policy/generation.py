"""A generation: its listing, its streams and its shards, and how shards go. Pure.

A shard goes in two steps. It is retired: no later lease names it. Then it is unlinked, at once if no
lease names it; else it is marked, and unlinked when its last lease ends. What rests on it (`until`)
moves only when the mark or the unlink is durable. Before an unlink, state.json gets the heads of all
streams: if the sidecar of a stream's newest shard is lost later, no older one may be left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from cachecd.policy import commands as do
from cachecd.policy.events import GenerationFound, Listed
from cachecd.policy.quarantine import Quarantine
from cachecd.policy.shard_table import ShardTable, Status
from cachecd.policy.streams import Blocks, Stream
from cachecd.policy.supplements import Supplements
from cachecd.policy.values import Head, Name
from cachecd.stream import Cursor, Shape, StreamId

_FOUND = {"live": Status.LIVE, "lost": Status.LIVE, "old": Status.RETIRED}
_FOUND |= {"damaged": Status.QUARANTINED, "excluded": Status.QUARANTINED}


class Generation:
    """One directory. `shape` is None until it is fixed; then there are streams and a table."""

    def __init__(self, found: GenerationFound, footprint: int) -> None:
        self.id, self.split = found.generation, found.split
        self.footprint = footprint
        self.shape: Shape | None = None
        self.blocks = Blocks(Shape(1, 1, 1, 1, 0))
        self.table = ShardTable(1)
        self.streams: list[Stream] = []
        self.supplements = Supplements()
        self.quarantine = Quarantine()
        self.units = self.listed_bytes = self.completed = self.num_retired = 0
        self.reason = ""
        self.writes_shape = False
        self.is_configured = True
        self.tainted: set[int] = set()  # retired numbers of which no resumed run gets a record
        self._to_unlink: dict[do.WriteState, list[Name]] = {}
        self._state: do.WriteState | None = None  # what state.json has
        self._lost: list[int] = []
        if found.shape is not None:
            self._start(found, found.shape)

    def _start(self, found: GenerationFound, shape: Shape) -> None:
        self.fix(shape)
        *heads, supplements = found.heads
        for stream, head in zip(self.streams, heads, strict=True):
            stream.next = stream.behind = head.next
            stream.cursor = head.cursor
        self.supplements.next = supplements.next
        self.table.load((each.number, each.facts, _FOUND[each.status]) for each in found.shards)
        for shard in found.shards:
            for version, allocated in shard.elders:
                self.table.add_elder(shard.number, version, allocated)
            if shard.status == "lost":
                self._lost.append(shard.number)
            elif shard.status in ("damaged", "excluded"):
                self.quarantine.adopt(shard.number, shard.status == "excluded")

    def started(self, out: list[do.Command]) -> None:
        """Ends a start: unlinks files that no lease names, retires shards whose sidecar is lost."""
        self.unlink(self.table.unheld(), out)
        for number in self._lost:
            self.lose(number, out)
        self.note_oldest(out)

    def fix(self, shape: Shape, begin: int = 0) -> None:
        """The shape is in generation.json; streams begin at place `begin`, modulo the units listed."""
        self.shape, self.table = shape, ShardTable(shape.streams)
        self.blocks = Blocks(shape, self.blocks.ends, self.blocks.waits)
        self.streams = [Stream(index) for index in range(shape.streams)]
        if begin and self.units:
            for stream in self.streams:
                stream.cursor = self.blocks.cursor_at(stream.index, begin % self.units)

    def listed(self, event: Listed, awaits_classes: bool) -> None:
        """The listing went on, ended, or failed."""
        self.blocks.waits = event.first
        self.blocks.ends = () if event.first and awaits_classes else event.ends
        self.units, self.listed_bytes = event.units, event.size
        self.completed, self.reason = event.completed, event.reason
        for stream in self.streams:
            stream.changed()

    # --- figures

    @property
    def reserved(self) -> int:
        """Bytes of granted and sealed shards that are not published yet."""
        shards = sum(stream.reserved for stream in self.streams) + self.supplements.reserved
        return shards * self.footprint + self.quarantine.reserved

    @property
    def held(self) -> int:
        """Live, retired and reserved bytes."""
        return self.table.total + self.reserved

    @property
    def is_whole(self) -> bool:
        """Every stream stands at `until`: there is nothing to feed before something retires."""
        return (
            self.shape is not None
            and not self.blocks.waits
            and not any(stream.feeds(self.blocks) for stream in self.streams)
            and all(self.is_settled(stream) for stream in self.streams)
        )

    def is_settled(self, stream: Stream) -> bool:
        """Whether `until` of a stream is what its live shards allow: nothing is being retired or read."""
        return self.table.oldest_live(stream.index) == (stream.tail and stream.tail[0])

    @property
    def estimate(self) -> float:
        """The bytes that all listed units would occupy, at today's bytes per unit."""
        lanes = self.blocks.shape.lanes * self.blocks.shape.streams
        ended = max(0, self.table.ended - lanes)  # so many may have begun before the live shards
        return self.units * self.table.live_bytes / ended if ended else math.inf

    @property
    def coverage(self) -> float:
        """The share of the units that were ever opened."""
        opened = sum(
            self.blocks.shape.units_of(stream.index, self.blocks.ends)
            if stream.tip.pass_
            else self.blocks.units_before(stream.index, stream.tip)
            for stream in self.streams
        )
        return min(1.0, opened / self.units) if self.units else 0.0

    @property
    def place(self) -> int:
        """The least place of all streams, counted over passes."""
        places = []
        for stream in self.streams:
            here = self.blocks.next_place(stream.index, stream.cursor)
            g = self.units
            if here is not None:
                g = self.blocks.shape.g_of(stream.index, *here, self.blocks.ends)
            places.append(stream.cursor.pass_ * self.units + g)
        return min(places, default=0)

    def stream_id(self, index: int) -> StreamId:
        """The name of a stream."""
        return StreamId(self.id.dataset, self.id.name, index)

    # --- how shards go

    def retire(self, numbers: Iterable[int], out: list[do.Command]) -> None:
        """No later lease names these shards. One that is being made again is retired after that."""
        marks: list[int] = []
        free: list[Name] = []
        for number in numbers:
            if self.quarantine.retire_later(number):
                continue
            self.table.set_status(number, Status.RETIRING)
            self.num_retired += 1
            if self.table.needs_mark(number):
                marks.append(number)
            else:
                free.append((number, self.table.facts(number).version))
        if marks:
            out.append(do.MarkRetired(self.id, tuple(marks)))
        self.unlink(free, out)

    def lose(self, number: int, out: list[do.Command]) -> None:
        """The sidecar of a shard is lost: it is retired, with the older shards of its stream, because the
        records that it had come only with the next pass."""
        stream = number % (self.table.streams + 1)
        if stream == self.table.streams:
            self.supplements.try_again()
            self.retire([number] if self.table.status(number) in (1, 2) else [], out)
            return
        older = [n for n, _ in self.table.live_of(stream) if n <= number]
        self.retire(older, out)

    def retire_supplements(self, out: list[do.Command]) -> bool:
        """Supplements go before a stream publishes its next shard. True once none is left."""
        index = self.table.streams
        self.retire([number for number, _ in self.table.live_of(index)], out)
        return self.table.oldest_current(index) is None and not self.supplements.reserved

    def marked(self, numbers: Iterable[int], out: list[do.Command]) -> None:
        """The marks of retired shards are durable."""
        for number in numbers:
            if self.table.is_held(number):
                self.table.set_status(number, Status.RETIRED)
            else:
                self.table.set_status(number, Status.UNLINKING)
                self.unlink([(number, self.table.facts(number).version)], out)
        self.note_oldest(out)

    def unlink(self, names: list[Name], out: list[do.Command]) -> None:
        """Has files removed that no lease names."""
        if not names:
            return
        write = do.WriteState(self.id, self.heads())
        if write == self._state:
            out.append(do.Unlink(self.id, tuple(names)))
        elif write in self._to_unlink:
            self._to_unlink[write] += names
        else:
            self._to_unlink[write] = list(names)
            out.append(write)

    def heads(self) -> tuple[Head, ...]:
        """The head of each stream behind its published shards, then the head of the supplements."""
        heads = [Head(stream.next, stream.cursor) for stream in self.streams]
        return (*heads, Head(self.supplements.next, Cursor()))

    def state_written(self, written: do.WriteState, out: list[do.Command]) -> None:
        """state.json has these heads."""
        self._state = written
        if names := self._to_unlink.pop(written, []):
            out.append(do.Unlink(self.id, tuple(names)))

    def unlinked(self, names: Iterable[Name], out: list[do.Command]) -> None:
        """Files are gone."""
        for number, version in names:
            self.table.unlinked(number, version)
            self.tainted.discard(number)
        self.table.forget_gone()
        self.note_oldest(out)

    def note_oldest(self, out: list[do.Command]) -> None:
        """Has each stream know its oldest shard, and the cursor before it."""
        for stream in self.streams if self.is_configured else ():
            stream.note_oldest(self.table.oldest_current(stream.index))
            oldest = stream.oldest
            known = stream.tail and stream.tail[0]
            if oldest is not None and oldest not in (known, stream.reading_tail):
                stream.reading_tail = oldest
                number = self.blocks.shape.number(stream.index, oldest)
                out.append(do.ReadCursor(self.id, number))

    def cursor_read(self, number: int, before: Cursor) -> None:
        """The cursor before a shard was read from its sidecar."""
        index, j = self.blocks.shape.split(number)
        stream = self.streams[index]
        if stream.reading_tail == j:
            stream.reading_tail = None
        if stream.oldest is not None and j <= stream.oldest:
            stream.tail = max(stream.tail or (j, before), (j, before), key=lambda tail: tail[0])
            stream.changed()
