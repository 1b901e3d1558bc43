"""What every kind of store offers: a listing, and reads that make a single attempt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from typing_extensions import Buffer

from cachecd.errors import SourceError
from cachecd.model import ObjectInfo

PAGE = 1000  # entries of a listing handed over at a time


class TransientError(SourceError):
    """One attempt failed in a way that the next may not.

    `throttled`: the store asks for fewer requests, which says nothing about the object.
    """

    def __init__(self, reason: str, throttled: bool = False) -> None:
        super().__init__(reason)
        self.throttled = throttled


class Backend(Protocol):
    """One kind of store. Every failure is one of these three errors; none carries credentials.

    TransientError: try again. UnitError: this object cannot be read, ever. SourceUnreachableError:
    nothing can be read until somebody acts; the reason says what to do.
    """

    where: str  # the source as people know it, for messages

    def list(self) -> Iterator[list[ObjectInfo]]:
        """All objects in pages, keys relative to the source's URL. Blocks: call it in a thread."""

    async def read(self, key: str, start: int, stop: int | None, etag: str) -> Buffer:
        """Bytes [start, stop) of an object, to its end if `stop` is None; fewer if it is shorter.

        UnitError if `etag` is given and the object has another one now.
        """
