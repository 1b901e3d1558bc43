"""The bytes of a unit, as a format requests them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

from typing_extensions import Buffer

from cachecd.model import ObjectInfo, Unit
from cachecd.sampler.read_ahead import in_pieces


class Reads(Protocol):
    """A store, or a store that counts its reads; the methods are those of `fetch.Store`."""

    async def get(self, key: str, size: int | None, etag: str, start: int, stop: int) -> Buffer: ...
    async def tail(self, key: str, length: int, etag: str) -> tuple[int, Buffer]: ...
    async def find(self, key: str) -> ObjectInfo: ...
    def list(self) -> Iterator[list[ObjectInfo]]: ...


class Content:
    """One unit's object, in the version that was listed.

    Reads raise UnitError if the bytes cannot be read, SourceUnreachableError if nothing can be read from
    the store.

    `chunks`: the bytes of the format's `span`, in order, cut anywhere; at least one piece. Can be iterated
    once. `objects`: the objects of a joined unit, whose bytes are the chunks, one object after the other.
    Complete when the chunks have ended.
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
        """Content without chunks, for inspecting a listed object."""

        async def nothing() -> AsyncIterator[Buffer]:
            for chunk in list[Buffer]():
                yield chunk

        return Content(Unit(0, unit.key, unit.size, unit.etag), nothing(), reader)

    async def read(self, start: int, stop: int, key: str | None = None, etag: str = "") -> Buffer:
        """Returns bytes [start, stop) of the object, or of the object `key` of the same source, in the
        version `etag` if that is given: exactly this many. Large reads use several requests at a time."""
        if key is None or key == self._unit.key:
            key, etag = self._unit.key, self._unit.etag
        name = key
        return await in_pieces(
            lambda begin, end: self._reader.get(name, None, etag, begin, end), start, stop
        )

    async def tail(self, length: int) -> tuple[int, Buffer]:
        """Returns the object's size and its last `length` bytes, or all bytes of a shorter object."""
        return await self._reader.tail(self._unit.key, length, self._unit.etag)

    async def find(self, key: str) -> ObjectInfo:
        """Looks up the object `key` of the same source as it is now: returns its size. GoneError if it does
        not exist."""
        return await self._reader.find(key)

    def list(self) -> Iterator[list[ObjectInfo]]:
        """Yields all objects of the same source, in pages. Blocks."""
        return self._reader.list()


def whole(unit: Unit) -> tuple[int, int]:
    """The span of a format that reads its units from one end to the other: from `unit.offset` on."""
    return unit.begin + unit.offset, unit.begin + unit.size
