"""Grants the next shards of streams, and handles the reports of workers. Pure.

Room is reserved in the order of the shards' numbers, at most 2 S numbers ahead of the lowest unpublished
shard. The shards of a stream are published in order.
"""

from __future__ import annotations

from cachecd.model import MOST_LANES, Shape, StreamId
from cachecd.policy import commands as do
from cachecd.policy.dataset import Dataset
from cachecd.policy.events import (
    HalfFull,
    Published,
    PublishRefused,
    ShardSealed,
    StreamClosed,
    StreamFailed,
)
from cachecd.policy.generation import Generation
from cachecd.policy.pause import Pause
from cachecd.policy.room import Room
from cachecd.policy.streams import Stream

Report = HalfFull | ShardSealed | Published | PublishRefused | StreamFailed | StreamClosed
_AHEAD = 2  # times S


def shape_of(
    streams: int, units: int, share: int, shard_size: int, seed: int, resumed: int | None = None
) -> Shape:
    """Returns the shape of a new generation. `units`: the number of units in its first block. `resumed`:
    the S of a resumed run. With few units, S is (units + 1) / 2, rounded up, and the stripe is 1, so that
    workers get equal parts. For example, 6 units in 3 streams leave one of two workers idle for a third
    of the time, but 6 units in 4 streams do not."""
    count = max(1, min(streams, units // 2 + 1, share // (4 * shard_size)))
    count = count if resumed is None else resumed
    stripe = 32 if units >= 32 * count else 8 if units >= 8 * count else 1
    return Shape(count, stripe, max(1, min(MOST_LANES, units // count)), shard_size, seed)


class Granting:
    """Grants, opens, publishes and closes shards and streams. Commands are appended to `out`."""

    def __init__(self, room: Room, disk: Pause, out: list[do.Command]) -> None:
        self._room, self._disk, self._out = room, disk, out

    def fix_shape(self, dataset: Dataset) -> None:
        """Fixes S, stripe and lanes when the first block ends. A resumed run fixes them again when all
        streams are closed."""
        gen, rules, resume = dataset.generation, dataset.rules, dataset.resume
        if gen.writes_shape or not gen.blocks.ends or (gen.shape is not None and resume is None):
            return
        if not gen.is_fresh:  # a shard was sealed meanwhile
            dataset.resume = None
            return
        opened = [stream for stream in gen.streams if stream.open]
        for stream in opened:
            if not stream.closing:
                self._close(gen, stream)
        if opened:
            return
        seed, resumed = rules.seed, None
        if resume is not None:
            seed, resumed = resume.sampling_seed, resume.streams
        share = self._room.share(dataset)
        units = gen.blocks.ends[0]  # the current length depends on the pages
        shape = shape_of(rules.streams, units, share, rules.shard_size, seed, resumed)
        gen.writes_shape = True
        self._out.append(do.WriteShape(gen.id, shape))

    def grant(self, dataset: Dataset, now: float) -> None:
        """Grants every shard that is needed and has room."""
        gen = dataset.generation
        while (stream := self._next(dataset, now)) is not None:
            if not self._room.make_room(dataset):
                return
            self._close_supplements(gen)  # the next pass has these records
            name = gen.stream_id(stream.index)
            cursor, until = stream.begin, stream.allowed_until
            assert cursor is not None
            assert until is not None
            begins = stream.reopen or cursor != stream.tip  # the pass of the worker has ended
            if not stream.open or (begins and not stream.granted):
                stream.opened(until)
                self._out.append(do.OpenStream(name, cursor, until, stream.condemned))
            number = gen.blocks.shape.number(stream.index, stream.wanted)
            stream.granted.append(stream.wanted)
            self._out.append(do.GrantShard(name, number))

    def _next(self, dataset: Dataset, now: float) -> Stream | None:
        """Returns the stream whose next shard gets room first, or None if no stream may get room."""
        gen = dataset.generation
        number = gen.blocks.shape.number
        feeding = [stream for stream in gen.streams if stream.sealed or stream.begin is not None]
        free = {
            number(stream.index, stream.wanted): stream
            for stream in feeding
            if len(stream.granted) < 2
            and not stream.closing
            and (stream.open or not stream.pause.stops(now))
            and stream.begin is not None
        }
        if not any(not stream.granted or stream.half for stream in free.values()):
            return None
        first = min(free)
        lowest = min(number(stream.index, stream.next) for stream in feeding)
        if first > lowest + _AHEAD * len(gen.streams):
            return None
        uncapped = self._room.uncapped_share(dataset) if dataset.rules.wait else 0
        may = dataset.may_grow(free[first].wanted, self._room.first(dataset), uncapped)
        return free[first] if may else None

    def supplement(self, dataset: Dataset, now: float) -> None:
        """Starts the search for missing records of a whole dataset, and makes supplements."""
        gen, supplements = dataset.generation, dataset.generation.supplements
        if not gen.is_whole or supplements.closing or supplements.pause.stops(now):
            return
        if supplements.search(gen.completed, now):
            self._out.append(do.FindMissing(gen.id, supplements.begin, gen.table.current_names()))
        if not supplements.pieces or supplements.reserved:
            return
        supplements.lacks_room = not self._room.make_room(dataset)
        if not supplements.lacks_room:
            name = gen.stream_id(len(gen.streams))
            number = gen.blocks.shape.number(name.index, supplements.next)
            self._out.append(do.MakeSupplement(name, number, supplements.start()))

    def _close_supplements(self, gen: Generation) -> None:
        gen.supplements.forget()
        if gen.supplements.reserved and not gen.supplements.closing:
            gen.supplements.closing += 1
            self._out.append(do.CloseStream(gen.stream_id(len(gen.streams))))

    def settle(self, gen: Generation) -> None:
        """Sends each new `until` to its worker, and closes streams that have nothing to fetch."""
        for stream in gen.streams:
            self._publish(gen, stream)
            if not stream.open or stream.closing:
                continue
            until = stream.allowed_until
            if until is not None and until != stream.until:
                stream.until, stream.fresh = until, False
                self._out.append(do.SetUntil(gen.stream_id(stream.index), until))
            idle = not stream.sealed and not gen.blocks.is_growing and gen.is_settled(stream)
            if idle and stream.begin is None:
                self._close(gen, stream)

    def give_back(self, gen: Generation) -> None:
        """Closes the streams of a generation without a shard. They may wait for units, while a page of
        the listing waits for their room."""
        for stream in gen.streams:
            if stream.granted and not stream.closing:
                self._close(gen, stream)

    def _close(self, gen: Generation, stream: Stream) -> None:
        stream.closing += 1
        self._out.append(do.CloseStream(gen.stream_id(stream.index)))

    def _publish(self, gen: Generation, stream: Stream) -> None:
        if not stream.sealed or stream.publishing or stream.closing:
            return
        if gen.retire_supplements():  # a supplement may have a record of this shard
            stream.publishing = True
            self._out.append(_publish(stream.sealed[0]))

    # --- reports

    def report(self, dataset: Dataset, event: Report, now: float) -> None:
        """Handles a report of a worker, or of the disk about a sealed shard."""
        gen = dataset.generation
        stream, supplements = gen.stream(event.stream), gen.supplements
        match event:
            case HalfFull(_, number) if stream:
                _, j = gen.blocks.shape.split(number)
                stream.half = stream.half or j in list(stream.granted)[:1]
            case ShardSealed(_, number):
                dataset.source.end()
                gen.note_schema(event)
                if stream:
                    stream.finish(gen.blocks.shape.split(number)[1], event)
                else:
                    supplements.finish(event, now)
                    if supplements.sealed is event:
                        self._out.append(_publish(event))
            case Published(_, number, allocated):
                self._disk.end()
                _, j = gen.blocks.shape.split(number)
                sealed = stream.published(j) if stream else supplements.published()
                gen.table.add(number, sealed.facts._replace(allocated=allocated))
                dataset.rotation.note_sealed(allocated)
            case PublishRefused():
                self.refused(gen, event.stream)
            case StreamFailed(_, cause, reason):
                if cause == "disk":
                    self._disk.begin(now, reason)
                elif cause == "source":
                    dataset.source.begin(now, reason)
                writer = stream or supplements
                if not writer.closing:  # else StreamClosed follows
                    writer.failed(event, now)
            case StreamClosed():
                (stream or supplements).closed()

    def refused(self, gen: Generation, name: StreamId) -> None:
        """Moves a stream back to its last cursor, because its shard cannot be published."""
        if (stream := gen.stream(name)) is not None:
            self._close(gen, stream)
        else:
            self._close_supplements(gen)


def _publish(sealed: ShardSealed) -> do.PublishShard:
    return do.PublishShard(sealed.stream, sealed.number, not sealed.facts.records)
