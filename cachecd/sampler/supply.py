"""The contents of a stream's units, fetched before they are needed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import partial

from typing_extensions import Buffer

from cachecd.errors import UnitError
from cachecd.model import Unit
from cachecd.sampler.draft import Draft
from cachecd.sampler.formats import Position, PreparedFormat
from cachecd.sampler.formats.content import Content
from cachecd.sampler.joined import Joined
from cachecd.sampler.origin import MeteredStore, Origin
from cachecd.sampler.read_ahead import PIECE, ReadAhead
from cachecd.sampler.user_reader import UNSIZED

UNKNOWN_SIZE = 16 << 20  # what a unit of unknown size counts


class Supply:
    """Units of one dataset, each named by the handle that `add` returned.

    `room()`: the bytes that may still be written. `written()`: the bytes that were written. No more bytes
    are fetched ahead than will fit. `working` is called with each unit that gives a record, `failed` with
    each error that skips a unit, `breathe` after each step in filling a shard.
    """

    def __init__(
        self,
        dataset: Origin,
        source: PreparedFormat,
        reader: MeteredStore,
        capacity: int,
        lanes: int,
        connections: int,
        room: Callable[[], int],
        written: Callable[[], int],
        working: Callable[[Unit], None],
        failed: Callable[[Exception], None],
        breathe: Callable[[], None] = lambda: None,
    ) -> None:
        self._dataset = dataset
        self._source = source
        self._reader = reader
        self._capacity = capacity
        self._room = room
        self._written = written
        self._working = working
        self._failed = failed
        self.breathe = breathe
        # Whether a unit may be less than its object.
        given = dataset.config.source
        self._parted = not given.lists_objects or given.manifest is not None
        self._units: dict[int, Unit] = {}
        self._joined: dict[int, Joined] = {}
        self._ahead = ReadAhead((), self._piece, connections, self._wanted, lanes)

    @property
    def buffered(self) -> int:
        """Bytes in memory, or being fetched."""
        return self._ahead.buffered

    def add(self, unit: Unit) -> int:
        """Adds a unit that will be poured soon, after all units that were added before."""
        handle = self._ahead.add(self._source.span(unit))
        self._units[handle] = unit
        if (join := self._dataset.config.source.join) is not None:
            longer = partial(self._ahead.lengthen, handle)
            self._joined[handle] = Joined(unit, join, self._reader, longer)
        return handle

    def refusal(self, unit: Unit) -> str | None:
        """Returns why the unit cannot be used, judged by its key and size."""
        return self._source.refusal(unit, self._capacity)

    def in_hand(self, unit: Unit) -> int:
        """Returns the bytes that the unit counts while it is in hand; 0 if reading can begin in its
        middle."""
        source = self._dataset.config.source
        if source.is_seekable and not unit.seems_packed:
            return 0
        unknown = not unit.size or (source.format == "python" and unit.size == UNSIZED)
        return UNKNOWN_SIZE if unknown else unit.size

    def pour(self, handle: int, draft: Draft) -> AsyncGenerator[Position, int | None]:
        """See PreparedFormat.pour. From now on the unit is in hand, until `leave`."""
        unit = self._units[handle]
        objects = self._joined[handle].objects if handle in self._joined else ()
        content = Content(unit, self._ahead.chunks(handle), self._reader, objects)
        return self._source.pour(unit, content, draft)

    def work(self, unit: Unit) -> None:
        """Notes that the unit gives the next record."""
        self._working(unit)

    def reached(self, handle: int, position: Position) -> None:
        """Notes the unit's position."""
        unit = self._units[handle]
        span = self._source.span(unit)
        if position[1] and span is not None:
            self._ahead.note(handle, unit.begin + position[1] - span[0])

    def leave(self, handle: int, error: UnitError | None = None) -> None:
        """Releases the unit: it is done, or cannot be used."""
        self._ahead.leave(handle)
        self._units.pop(handle, None)
        self._joined.pop(handle, None)
        if error is not None:
            self._failed(error)

    async def listed_as(self, key: str) -> tuple[str, int]:
        """Returns the ETag and size that the object has in the store now. UnitError."""
        info = await self._reader.find(key)
        return info.etag, info.size

    def close(self) -> None:
        """Stops fetching."""
        self._ahead.close()

    async def _piece(self, handle: int, start: int, stop: int) -> Buffer:
        if handle in self._joined:
            return await self._joined[handle].read(start, stop)
        unit = self._units[handle]
        size = None if self._parted else unit.size
        return await self._reader.get(unit.key, size, unit.etag, start, stop)

    def _wanted(self) -> float:
        """How many fetched bytes will find room."""
        if (used := self._ahead.used) >= PIECE:
            self._dataset.growth = max(self._written() / used, 0.01)
        return self._room() / self._dataset.growth
