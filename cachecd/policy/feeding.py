"""Feeding: which shards the streams may write next, and what becomes of them. Pure.

Room is reserved in number order over all streams, at most 2 S numbers ahead of the lowest shard that is
not published; also for a stream that has not asked yet. Shards of a stream are published in order.
"""

from __future__ import annotations

from cachecd.policy import commands as do
from cachecd.policy.dataset import Dataset
from cachecd.policy.events import Failed, HalfFull, Published, PublishRefused, Sealed
from cachecd.policy.generation import Generation
from cachecd.policy.pause import Pause
from cachecd.policy.room import Room
from cachecd.policy.streams import Stream
from cachecd.stream import Shape

_AHEAD = 2  # times S
_MOST_LANES = 16


def shape_of(
    streams: int, units: int, share: int, shard_size: int, seed: int, resumed: int | None = None
) -> Shape:
    """The shape of a new generation. `units`: the units of its first block. `resumed`: S of the run that
    resumes."""
    count = max(1, min(streams, units // 8, share // (4 * shard_size)))
    count = count if resumed is None else resumed
    stripe = 32 if units >= 32 * count else 8
    return Shape(count, stripe, max(1, min(_MOST_LANES, units // count)), shard_size, seed)


class Feeding:
    """Grants, opens, publishes and closes shards and streams. Commands are appended to `out`."""

    def __init__(self, room: Room, disk: Pause, out: list[do.Command]) -> None:
        self._room, self._disk, self._out = room, disk, out

    def fix_shape(self, dataset: Dataset) -> None:
        """Fixes S, stripe and lanes when the first block ends."""
        gen, rules, resume = dataset.generation, dataset.rules, dataset.resume
        if gen.writes_shape or not gen.blocks.ends or (gen.shape is not None and resume is None):
            return
        seed, resumed = rules.sampling_seed, None
        if resume is not None:
            seed, resumed = resume.sampling_seed, resume.streams
        share = self._room.share(dataset)
        units = gen.blocks.ends[0]  # not what is listed by now: that depends on the pages
        shape = shape_of(rules.streams, units, share, rules.shard_size, seed, resumed)
        gen.writes_shape = True
        self._out.append(do.WriteShape(gen.id, shape))

    def grant(self, dataset: Dataset, now: float) -> None:
        """Grants every shard for which there is need and room."""
        gen = dataset.generation
        while (stream := self._next(dataset, now)) is not None:
            if not self._room.make_room(dataset):
                return
            self._abandon_supplement(gen)
            name = gen.stream_id(stream.index)
            cursor, until = stream.begin, stream.allowed_until
            assert cursor is not None
            assert until is not None
            anew = stream.reopen or cursor != stream.tip  # a worker ends with its pass
            if not stream.open or (anew and not stream.granted):
                stream.opened(until)
                self._out.append(do.OpenStream(name, cursor, until, stream.condemned))
            number = gen.blocks.shape.number(stream.index, stream.wanted)
            stream.granted.append(stream.wanted)
            self._out.append(do.GrantShard(name, number))

    def _next(self, dataset: Dataset, now: float) -> Stream | None:
        """The stream whose next shard is to have room first, None if none may."""
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
        """Has a whole dataset search and make the records that it lacks."""
        gen, supplements = dataset.generation, dataset.generation.supplements
        if not gen.is_whole or supplements.closing:
            return
        if supplements.is_due(gen.completed, now):
            supplements.searching = True
            self._out.append(do.FindMissing(gen.id, supplements.begin))
        if not supplements.pieces or supplements.reserved:
            return
        supplements.lacks_room = not self._room.make_room(dataset)
        if not supplements.lacks_room:
            name = gen.stream_id(len(gen.streams))
            number = gen.blocks.shape.number(name.index, supplements.next)
            self._out.append(do.MakeSupplement(name, number, supplements.start()))

    def _abandon_supplement(self, gen: Generation) -> None:
        if gen.supplements.abandon():
            self._out.append(do.CloseStream(gen.stream_id(len(gen.streams)), True))

    def settle(self, gen: Generation) -> None:
        """Has workers know each new `until`, and forget streams that have nothing to feed."""
        for stream in gen.streams:
            self._publish(gen, stream)
            if not stream.open or stream.closing:
                continue
            until = stream.allowed_until
            if until is not None and until != stream.until:
                stream.until, stream.fresh = until, False
                self._out.append(do.SetUntil(gen.stream_id(stream.index), until))
            idle = not stream.sealed and not gen.blocks.waits and gen.is_settled(stream)
            if idle and stream.begin is None:
                self._close(gen, stream, False)

    def _close(self, gen: Generation, stream: Stream, discard: bool) -> None:
        stream.closing += 1
        stream.discards = stream.discards or discard
        self._out.append(do.CloseStream(gen.stream_id(stream.index), discard))

    def _publish(self, gen: Generation, stream: Stream) -> None:
        if not stream.sealed or stream.publishing or stream.discards:
            return
        if gen.retire_supplements():  # a supplement may hold a record of this shard
            stream.publishing = True
            number = stream.sealed[0].number
            self._out.append(do.PublishShard(gen.stream_id(stream.index), number))

    # --- results

    def half_full(self, gen: Generation, event: HalfFull) -> None:
        _, j = gen.blocks.shape.split(event.number)
        if event.stream.index < len(gen.streams):
            stream = gen.streams[event.stream.index]
            stream.half = stream.half or j in list(stream.granted)[:1]

    def sealed(self, dataset: Dataset, event: Sealed, now: float) -> None:
        gen, index = dataset.generation, event.stream.index
        dataset.source.end()
        gen.note_schema(event)
        if index == len(gen.streams):
            if gen.supplements.making and not gen.supplements.closing:
                gen.supplements.finished(event, gen.completed, now)
                if gen.supplements.sealed:
                    self._out.append(do.PublishShard(event.stream, event.number))
            return
        stream = gen.streams[index]
        _, j = gen.blocks.shape.split(event.number)
        if not stream.discards and j in stream.granted:
            stream.finish(j, event)

    def published(self, dataset: Dataset, event: Published) -> None:
        gen, index = dataset.generation, event.stream.index
        self._disk.end()
        if index == len(gen.streams):
            sealed = gen.supplements.published()
        else:
            sealed = gen.streams[index].published(gen.blocks.shape.split(event.number)[1])
        gen.table.add(event.number, sealed.facts._replace(allocated=event.allocated))
        dataset.rotation.note_sealed(event.allocated)

    def refused(self, dataset: Dataset, event: PublishRefused, now: float) -> None:
        """A shard cannot be published: its stream goes back to its last cursor."""
        gen, index = dataset.generation, event.stream.index
        if not event.excluded:
            self._disk.begin(now, event.reason)
        if index < len(gen.streams):
            self._close(gen, gen.streams[index], True)
        elif not gen.supplements.closing:
            self._abandon_supplement(gen)
            gen.supplements.try_again()

    def failed(self, dataset: Dataset, event: Failed, now: float) -> None:
        gen, index = dataset.generation, event.stream.index
        at_work = event.cause == "worker" and event.unit is not None
        if event.cause == "disk":
            self._disk.begin(now, event.reason)
        elif event.cause == "source" or (index == len(gen.streams) and not at_work):
            dataset.source.begin(now, event.reason)
        if index == len(gen.streams):
            if not gen.supplements.closing:
                gen.supplements.lost(event.unit if at_work else None, now)
        elif not gen.streams[index].closing:  # else StreamClosed follows
            gen.streams[index].failed(event, now)

    def closed(self, gen: Generation, index: int) -> None:
        if index == len(gen.streams):
            gen.supplements.closed()
        else:
            gen.streams[index].closed()
