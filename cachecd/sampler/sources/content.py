"""The bytes of a unit, as a format asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

from typing_extensions import Buffer

from cachecd.model import ObjectInfo, Unit
from cachecd.sampler.ahead import in_pieces


class Reader(Protocol):
    """A store, as it counts for the assignment in hand; its methods are those of `fetch.Store`."""

    async def get(self, key: str, size: int | None, etag: str, start: int, stop: int) -> Buffer: ...
    async def tail(self, key: str, length: int, etag: str) -> tuple[int, Buffer]: ...
    async def find(self, key: str) -> ObjectInfo: ...
    def list(self) -> Iterator[list[ObjectInfo]]: ...


class Content(Protocol):
    """One unit's object, of the version that was listed.

    Reads raise UnitError if the bytes cannot be had, SourceUnreachableError if nothing can be read
    from the store.
    """

    chunks: AsyncIterator[Buffer]
    """The bytes of the format's `span`, in order, cut anywhere; at least one piece. Once."""

    objects: Sequence[ObjectInfo]
    """The objects of a joined unit, whose bytes are the chunks, one object after the other. Complete when
    the chunks have ended."""

    async def read(self, start: int, stop: int, key: str | None = None, etag: str = "") -> Buffer:
        """Bytes [start, stop) of the object, or of the object `key` of the same source, of the version
        `etag` if that is given: exactly as many. Large reads are several requests at a time."""

    def list(self) -> Iterator[list[ObjectInfo]]:
        """All objects of the same source, in pages. Blocks."""

    async def tail(self, length: int, key: str | None = None, etag: str = "") -> tuple[int, Buffer]:
        """The object's size and its last `length` bytes, or all of it if it has fewer; or of another, as
        `read` has it."""

    async def find(self, key: str) -> ObjectInfo:
        """The object `key` of the same source as it is now: its size. GoneError if there is none."""


def whole(unit: Unit) -> tuple[int, int]:
    """The span of a format that reads its units from one end to the other: from the slice on."""
    return unit.begin + unit.offset, unit.begin + unit.size


class UnitContent:
    """A unit's content, as the worker's store gives it."""

    def __init__(
        self,
        unit: Unit,
        chunks: AsyncIterator[Buffer],
        reader: Reader,
        objects: Sequence[ObjectInfo] = (),
    ) -> None:
        self.chunks = chunks
        self.objects = objects
        self._unit = unit
        self._reader = reader

    async def tail(self, length: int, key: str | None = None, etag: str = "") -> tuple[int, Buffer]:
        name, version = self._named(key, etag)
        return await self._reader.tail(name, length, version)

    async def find(self, key: str) -> ObjectInfo:
        return await self._reader.find(key)

    async def read(self, start: int, stop: int, key: str | None = None, etag: str = "") -> Buffer:
        name, version = self._named(key, etag)
        return await in_pieces(
            lambda begin, end: self._reader.get(name, None, version, begin, end), start, stop
        )

    def _named(self, key: str | None, etag: str) -> tuple[str, str]:
        """An object and its version: the unit's own is the one that was listed."""
        unit = self._unit
        return (unit.key, unit.etag) if key is None or key == unit.key else (key, etag)

    def list(self) -> Iterator[list[ObjectInfo]]:
        return self._reader.list()
