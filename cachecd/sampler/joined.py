"""Reads the objects of a joined unit."""

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
    """The objects of one joined unit as one sequence of bytes: each object begins where the object before
    it ends.

    The listing has the first object. `read` looks up the other objects before it reads a byte, so a unit
    with a missing object costs no bytes. It calls `longer` with the sum of their sizes, so that memory is
    reserved for them, and adds them to `objects`.
    """

    def __init__(
        self, unit: Unit, join: Join, reader: Reads, longer: Callable[[int], None]
    ) -> None:
        first, *self._others = (pattern.replace("*", unit.key) for pattern in join.values())
        self.objects = [ObjectInfo(first, unit.size, unit.etag)]
        self._reader = reader
        self._longer = longer

    async def read(self, start: int, stop: int) -> Buffer:
        """Returns bytes [start, stop) of the unit. The first call must begin at 0. UnitError names the
        object."""
        if start == 0 and self._others:
            others = [await _named(key, self._reader.find(key)) for key in self._others]
            self._others.clear()
            self.objects += others
            self._longer(sum(part.size for part in others))
        parts: list[Buffer] = []
        begin = 0
        for part in self.objects:
            low, high = max(start - begin, 0), min(stop - begin, part.size)
            if low < high:
                read = self._reader.get(part.key, part.size, part.etag, low, high)
                listed = part is self.objects[0]
                parts.append(await (read if listed else _named(part.key, read)))
            begin += part.size
        return parts[0] if len(parts) == 1 else b"".join(parts)


async def _named(key: str, answer: Awaitable[_Result]) -> _Result:
    """Awaits a reply of the store; a UnitError names the object."""
    try:
        return await answer
    except GoneError as error:
        raise UnitError(f"{key!r} is missing") from error
    except UnitError as error:
        raise UnitError(f"{key!r}: {error}", passing=error.passing) from error
