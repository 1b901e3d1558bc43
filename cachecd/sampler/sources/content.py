"""The bytes of a unit, as a format asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Protocol

from typing_extensions import Buffer

from cachecd.model import ObjectInfo, UnitSlice
from cachecd.sampler.ahead import in_pieces

# (key, size if it is known, etag, start, stop)
Fetch = Callable[[str, int | None, str, int, int], Awaitable[Buffer]]
Find = Callable[[str], Awaitable[ObjectInfo]]

Objects = Callable[[], Iterator[list[ObjectInfo]]]


class Content(Protocol):
    """One unit's object, of the version that was listed.

    Reads raise UnitError if the bytes cannot be had, SourceUnreachableError if nothing can be read
    from the store.
    """

    chunks: AsyncIterator[Buffer]
    """The bytes of the format's `span`, in order, cut anywhere; at least one piece. Once."""

    async def read(self, start: int, stop: int, key: str | None = None, etag: str = "") -> Buffer:
        """Bytes [start, stop) of the object, or of the object `key` of the same source, of the version
        `etag` if that is given: exactly as many. Large reads are several requests at a time."""

    def list(self) -> Iterator[list[ObjectInfo]]:
        """All objects of the same source, in pages. Blocks."""

    async def find(self, key: str) -> ObjectInfo:
        """The object `key` of the same source as it is now: its size. GoneError if there is none."""


def whole(unit: UnitSlice) -> tuple[int, int]:
    """The span of a format that reads its units from one end to the other: from the slice on."""
    return unit.begin + unit.offset, unit.begin + unit.size


class UnitContent:
    """A unit's content, as the worker's store gives it."""

    def __init__(
        self,
        unit: UnitSlice,
        chunks: AsyncIterator[Buffer],
        fetch: Fetch,
        find: Find,
        objects: Objects = lambda: iter(()),
    ) -> None:
        self.chunks = chunks
        self._find = find
        self._unit = unit
        self._fetch = fetch
        self._objects = objects

    async def find(self, key: str) -> ObjectInfo:
        return await self._find(key)

    async def read(self, start: int, stop: int, key: str | None = None, etag: str = "") -> Buffer:
        unit = self._unit
        key, etag = (unit.key, unit.etag) if key in (None, unit.key) else (key, etag)
        return await in_pieces(
            lambda begin, end: self._fetch(key, None, etag, begin, end), start, stop
        )

    def list(self) -> Iterator[list[ObjectInfo]]:
        return self._objects()
