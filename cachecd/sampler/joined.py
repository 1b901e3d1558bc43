"""Reads the objects of a joined unit as one sequence of bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from typing_extensions import Buffer

from cachecd.config.source import Join
from cachecd.errors import UnitError
from cachecd.model import ObjectInfo, Unit
from cachecd.sampler.formats.content import Reads
from cachecd.stores.backend import GoneError

_Result = TypeVar("_Result")


class Joined:
    """The objects of one joined unit, one object after the other.

    The listing has only the first object. The first `read` finds the other objects before it reads a byte,
    so a unit with a missing object costs no bytes. It adds these objects to `objects`, and calls
    `lengthen` with the sum of their sizes, so that memory is reserved for them.
    """

    def __init__(
        self, unit: Unit, join: Join, reader: Reads, lengthen: Callable[[int], None]
    ) -> None:
        first, *self._others = (pattern.replace("*", unit.key) for pattern in join.values())
        self.objects = [ObjectInfo(first, unit.size, unit.etag)]
        self._reader = reader
        self._lengthen = lengthen

    async def read(self, start: int, stop: int) -> Buffer:
        """Returns bytes [start, stop) of the unit. The first call must begin at 0. A UnitError names the
        object, unless it is the first one."""
        if start == 0 and self._others:
            others = [await _named(key, self._reader.find(key)) for key in self._others]
            self._others.clear()
            self.objects += others
            self._lengthen(sum(part.size for part in others))
        parts: list[Buffer] = []
        begin = 0
        for part in self.objects:
            low, high = max(start - begin, 0), min(stop - begin, part.size)
            if low < high:
                read = self._reader.get(part.key, part.size, part.etag, low, high)
                is_listed = part is self.objects[0]
                parts.append(await (read if is_listed else _named(part.key, read)))
            begin += part.size
        return parts[0] if len(parts) == 1 else b"".join(parts)


async def _named(key: str, reply: Awaitable[_Result]) -> _Result:
    """Awaits a reply of the store. Adds the object's key to a UnitError."""
    try:
        return await reply
    except GoneError as error:
        raise UnitError(f"{key!r} is missing") from error
    except UnitError as error:
        raise UnitError(f"{key!r}: {error}", passing=error.passing) from error
