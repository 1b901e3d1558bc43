"""Gives a format the bytes of one unit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

from typing_extensions import Buffer

from cachecd.model import ObjectInfo, Unit
from cachecd.sampler.meter import METER
from cachecd.sampler.read_ahead import in_pieces


class Reads(Protocol):
    """A store, or a store that counts its reads. `fetch.Store` documents the methods."""

    async def get(self, key: str, size: int | None, etag: str, start: int, stop: int) -> Buffer: ...
    async def tail(self, key: str, length: int, etag: str) -> tuple[int, Buffer]: ...
    async def find(self, key: str) -> ObjectInfo: ...
    def list(self) -> Iterator[list[ObjectInfo]]: ...


class Content:
    """The object of one unit, in the version that was listed.

    Reads raise UnitError if the bytes cannot be read, and SourceUnreachableError if nothing can be
    read from the store.

    `chunks`: the bytes of the format's `span`, in order, in one or more pieces of any length. Can be
    iterated once. `objects`: the objects of a joined unit; complete when the chunks have ended. The chunks
    are the bytes of these objects, one object after the other.
    """

    def __init__(
        self,
        unit: Unit,
        chunks: AsyncIterator[Buffer],
        reader: Reads,
        objects: Sequence[ObjectInfo] = (),
    ) -> None:
        self.chunks = chunks
        self.objects = objects
        self._unit = unit
        self._reader = reader

    @staticmethod
    def without_chunks(unit: ObjectInfo, reader: Reads) -> Content:
        """Returns content without chunks, to inspect a listed object."""

        async def nothing() -> AsyncIterator[Buffer]:
            for chunk in list[Buffer]():
                yield chunk

        return Content(Unit(0, unit.key, unit.size, unit.etag), nothing(), reader)

    async def read(self, start: int, stop: int, key: str | None = None, etag: str = "") -> Buffer:
        """Returns exactly the bytes [start, stop) of the object; or of the object `key` of the same source,
        in the version `etag` if that is given. Large reads use concurrent requests."""
        if key is None or key == self._unit.key:
            key, etag = self._unit.key, self._unit.etag
        name = key
        with METER.waiting():
            return await in_pieces(
                lambda begin, end: self._reader.get(name, None, etag, begin, end), start, stop
            )

    async def tail(self, length: int) -> tuple[int, Buffer]:
        """Returns the object's size and its last `length` bytes, or all bytes of a shorter object."""
        with METER.waiting():
            return await self._reader.tail(self._unit.key, length, self._unit.etag)

    async def find(self, key: str) -> ObjectInfo:
        """Returns present size and ETag of the object `key` of the same source. GoneError if it does not
        exist."""
        with METER.waiting():
            return await self._reader.find(key)

    def list(self) -> Iterator[list[ObjectInfo]]:
        """Yields all objects of the same source, in pages. Blocks."""
        return self._reader.list()


def whole(unit: Unit) -> tuple[int, int]:
    """Returns the bytes of the unit from `unit.offset` to its end, as a range of the object."""
    return unit.begin + unit.offset, unit.begin + unit.size
