"""What every kind of store offers: a listing, and reads that make a single attempt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from typing_extensions import Buffer

from cachecd.errors import SourceError, SourceUnreachableError, UnitError
from cachecd.model import ObjectInfo

PAGE = 1000  # entries of a listing handed over at a time


class TransientError(SourceError):
    """One attempt failed in a way that the next may not.

    `throttled`: the store asks for fewer requests, which says nothing about the object; `after` how
    many seconds later, 0 if it does not say. `denied`: asking again soon hardly helps.
    """

    def __init__(
        self, reason: str, throttled: bool = False, after: float = 0.0, denied: bool = False
    ) -> None:
        super().__init__(reason)
        self.throttled = throttled
        self.after = after
        self.denied = denied


class SlowError(TransientError):
    """One attempt brought less in its time than a link that works does."""


class NotPartialError(TransientError):
    """The store sent the whole object where a part was requested, so it has the object."""


class GoneError(UnitError):
    """The store does not have the object: of one, that is so; of all, it is the wrong place."""


def resized(found: int, listed: int) -> UnitError:
    """The object does not have the bytes that it was listed with."""
    return UnitError(f"the object has {found} bytes, {listed} were listed: it changed since")


class Backend(Protocol):
    """One kind of store. Every failure is one of these three errors; none carries credentials.

    TransientError: try again. UnitError: this object cannot be read, ever. SourceUnreachableError:
    nothing can be read until somebody acts; the reason says what to do.
    """

    where: str  # the source as people know it, for messages

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        """All objects in pages, keys relative to the source's URL. Blocks: call it in a thread.

        A page may be empty. `start_after`: only those whose keys come after this one, by their bytes.
        """

    def glimpse(self) -> Sequence[ObjectInfo]:
        """A few objects of the listing's beginning, in one attempt. Blocks."""
        return next(self.list(), [])

    async def read(self, key: str, start: int, stop: int, size: int | None, etag: str) -> Buffer:
        """Bytes [start, stop) of an object, which was listed with `size` bytes; fewer if it is shorter.

        Never more than one byte beyond `size` is kept, however much the store would send. UnitError,
        wherever the store tells before the body: if the object is not `size` bytes long (None: it
        does not matter), or if `etag` is given and the object has another one now. GoneError if there
        is no such object.
        """

    async def find(self, key: str) -> ObjectInfo:
        """The object as it is now, as a listing would name it. GoneError if there is none."""

    async def tail(self, key: str, length: int, etag: str) -> tuple[int, Buffer]:
        """An object's size and its last `length` bytes, or all of it if it has fewer. Raises as `read`
        does; UnitError may be raised of an empty object, which has no end."""


class Nowhere(Backend):
    """Of a source without a URL: its reader knows where its data are."""

    where = "a source without a url"

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        raise self._refusal()

    async def find(self, key: str) -> ObjectInfo:
        raise self._refusal()

    async def read(self, key: str, start: int, stop: int, size: int | None, etag: str) -> Buffer:
        raise self._refusal()

    async def tail(self, key: str, length: int, etag: str) -> tuple[int, Buffer]:
        raise self._refusal()

    def _refusal(self) -> SourceUnreachableError:
        return SourceUnreachableError("the source has no url, so it has no objects: give it one")
