"""The bytes of a unit, as a format asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from typing_extensions import Buffer

from cachecd.model import ObjectInfo, UnitSlice
from cachecd.sampler.ahead import PIECE


class Reader(Protocol):
    """A store, as it counts for the assignment in hand; its methods are those of `fetch.Store`."""

    async def get(self, key: str, size: int | None, etag: str, start: int, stop: int) -> Buffer: ...
    async def tail(self, key: str, length: int, etag: str) -> tuple[int, Buffer]: ...
    async def find(self, key: str) -> ObjectInfo: ...


class Content(Protocol):
    """One unit's object, of the version that was listed.

    Reads raise UnitError if the bytes cannot be had, SourceUnreachableError if nothing can be read
    from the store.
    """

    chunks: AsyncIterator[Buffer]
    """The bytes of the format's `span`, in order, cut anywhere; at least one piece. Once."""

    async def read(self, start: int, stop: int, key: str | None = None) -> Buffer:
        """Bytes [start, stop) of the object, or of the object `key` of the same source: exactly as
        many. Large reads are several requests at a time."""

    async def tail(self, length: int) -> tuple[int, Buffer]:
        """The object's size and its last `length` bytes, or all of it if it has fewer."""

    async def find(self, key: str) -> ObjectInfo:
        """The object `key` of the same source as it is now: its size. GoneError if there is none."""


def whole(unit: UnitSlice) -> tuple[int, int]:
    """The span of a format that reads its units from one end to the other: from the slice on."""
    return unit.begin + unit.offset, unit.begin + unit.size


class UnitContent:
    """A unit's content, as the worker's store gives it."""

    def __init__(self, unit: UnitSlice, chunks: AsyncIterator[Buffer], reader: Reader) -> None:
        self.chunks = chunks
        self._unit = unit
        self._reader = reader

    async def tail(self, length: int) -> tuple[int, Buffer]:
        return await self._reader.tail(self._unit.key, length, self._unit.etag)

    async def find(self, key: str) -> ObjectInfo:
        return await self._reader.find(key)

    async def read(self, start: int, stop: int, key: str | None = None) -> Buffer:
        unit = self._unit
        key, etag = (unit.key, unit.etag) if key in (None, unit.key) else (key, "")
        pieces = [
            asyncio.ensure_future(self._reader.get(key, None, etag, at, min(at + PIECE, stop)))
            for at in range(start, stop, PIECE)
        ]
        try:
            parts = await asyncio.gather(*pieces)
        finally:
            for piece in pieces:
                piece.cancel()
        return parts[0] if len(parts) == 1 else b"".join(parts)
