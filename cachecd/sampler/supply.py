"""Fetches the bytes of a stream's units before they are needed."""

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

UNKNOWN_SIZE = 16 << 20  # bytes that a unit of unknown size counts for


class Supply:
    """The units of one stream. `add` returns the handle of a unit.

    `room()`: bytes that may still be written. `written()`: bytes that were written. About as many bytes are
    fetched ahead as fit into the room. `work` must be called with each unit before it gives a record, and
    `after_step` after each step of filling. `failed` is called with each error that skips a unit.
    """

    def __init__(
        self,
        origin: Origin,
        format_: PreparedFormat,
        reader: MeteredStore,
        capacity: int,
        lanes: int,
        connections: int,
        room: Callable[[], int],
        written: Callable[[], int],
        work: Callable[[Unit], None],
        failed: Callable[[Exception], None],
        after_step: Callable[[], None],
    ) -> None:
        self._origin = origin
        self._config = origin.config.source
        self._format = format_
        self._reader = reader
        self._capacity = capacity
        self._room = room
        self._written = written
        self.work = work
        self._failed = failed
        self.after_step = after_step
        self._units: dict[int, Unit] = {}
        self._joined: dict[int, Joined] = {}
        self._ahead = ReadAhead((), self._piece, connections, self._wanted, lanes)

    @property
    def buffered(self) -> int:
        """Bytes in memory, and bytes that are being fetched."""
        return self._ahead.buffered

    def add(self, unit: Unit) -> int:
        """Adds a unit, which will be poured soon, but after all units that were added before."""
        handle = self._ahead.add(self._format.span(unit))
        self._units[handle] = unit
        if (join := self._config.join) is not None:
            lengthen = partial(self._ahead.lengthen, handle)
            self._joined[handle] = Joined(unit, join, self._reader, lengthen)
        return handle

    def refusal(self, unit: Unit) -> str | None:
        """Returns why the unit cannot be used, judged by its key and size."""
        return self._format.refusal(unit, self._capacity)

    def in_hand(self, unit: Unit) -> int:
        """Returns the bytes that the unit counts for while it is open: only its records in memory, if
        reading can begin in the middle of the unit."""
        if self._config.is_seekable and not unit.seems_packed:
            return min(self._format.held, unit.size)
        is_unknown = not unit.size or (self._config.format == "python" and unit.size == UNSIZED)
        return UNKNOWN_SIZE if is_unknown else unit.size

    def pour(self, handle: int, draft: Draft) -> AsyncGenerator[Position, int | None]:
        """See PreparedFormat.pour. The unit is open until `leave`."""
        unit = self._units[handle]
        objects = self._joined[handle].objects if handle in self._joined else ()
        content = Content(unit, self._ahead.chunks(handle), self._reader, objects)
        return self._format.pour(unit, content, draft)

    def reached(self, handle: int, position: Position) -> None:
        """Notes the position that reading the unit has reached."""
        unit = self._units[handle]
        span = self._format.span(unit)
        if position[1] and span is not None and not unit.seems_packed:
            self._ahead.note(handle, unit.begin + position[1] - span[0])

    def leave(self, handle: int, error: UnitError | None = None) -> None:
        """Releases the unit, which is done or cannot be used."""
        self._ahead.leave(handle)
        self._units.pop(handle, None)
        self._joined.pop(handle, None)
        if error is not None:
            self._failed(error)

    async def current_version(self, key: str) -> tuple[str, int]:
        """Returns the present ETag and size of the object in the store. UnitError if it has none."""
        info = await self._reader.find(key)
        return info.etag, info.size

    def close(self) -> None:
        """Stops fetching."""
        self._ahead.close()

    async def _piece(self, handle: int, start: int, stop: int) -> Buffer:
        if handle in self._joined:
            return await self._joined[handle].read(start, stop)
        unit = self._units[handle]
        may_be_a_part = not self._config.lists_objects or self._config.manifest is not None
        size = None if may_be_a_part else unit.size  # the size of the object
        return await self._reader.get(unit.key, size, unit.etag, start, stop)

    def _wanted(self) -> float:
        """Returns how many fetched bytes will fit into the room, as far as `growth` is known."""
        if (used := self._ahead.used) >= PIECE:
            self._origin.growth = max(self._written() / used, 0.01)
        return self._room() / self._origin.growth
