"""Brings a table up to date from the pages of a lister."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cachecd.errors import (
    DiskError,
    LimitTooSmallError,
    NoRoomError,
    RewrittenError,
    SourceUnreachableError,
)
from cachecd.listing.table import MOST_AT_ONCE, Table
from cachecd.model import ObjectInfo

# A source that changes while it is listed may name an object twice, but not many.
_MOST_REPEATED = 10_000

Result = TypeVar("Result")


class Room(Protocol):
    """The room under the limit for what a listing writes."""

    def reserve(self, size: int) -> None:
        """Before the table takes at most `size` bytes more. NoRoomError, LimitTooSmallError: it may not."""

    def settle(self) -> None:
        """After that: what was taken is on the disk, and the rest is not needed."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a complete listing changed. `gone`: the numbers of all units that the source does not list now,
    ascending."""

    new: int
    rewritten: int
    gone: NDArray[np.int64]


class Listing:
    """One listing of a source, over as many attempts as it takes.

    Each page is synced, and stays, whatever happens later. What was seen is one bit a unit, in memory.
    Retries are the caller's: it reads again, either the whole source or the rest.
    """

    def __init__(
        self,
        table: Table,
        thread: Executor,
        room: Room,
        judges: bool = False,
        block_ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`thread`: the one thread of the table. `judges`: this is the first listing since a start; if it
        shows that more than half of the known units were rewritten, it is refused, and no ETag is replaced.
        `block_ended` is called whenever more units may be fed."""
        self.listed = 0  # units, in this attempt
        self._table = table
        self._thread = thread
        self._room = room
        self._known = len(table)
        self._defers = judges and table.completed > 0
        self._block_ended = block_ended
        self._seen, self._rewritten = _Bits(), _Bits()
        self._begun = False

    async def read(self, pages: AsyncIterator[Sequence[ObjectInfo]]) -> Changes:
        """Reads pages of units up to the listing's end. The pages of a later attempt may begin anew, or go
        on behind the last page that was taken.

        If it fails, what is listed so far is made a block, so that it can be fed; and what the pages, the
        room or the disk have raised is raised: SourceError, NoRoomError, LimitTooSmallError, DiskError.
        RewrittenError: this listing is refused; a later one is another Listing.
        """
        self.listed = 0
        try:
            if not self._begun:
                await self._run(self._table.forget_deferred)
                self._begun = True
            async for page in pages:
                for start in range(0, len(page), MOST_AT_ONCE):
                    await self._add(page[start : start + MOST_AT_ONCE])
            if not self.listed and len(self._table):
                raise SourceUnreachableError(
                    f"the source is empty, {len(self._table)} units were listed before: is it mounted? "
                    "What is known of it stays as it is"
                )
            await self._write(self._table.finish, self._table.closing_cost)
        except RewrittenError:
            with contextlib.suppress(DiskError):  # then the next listing does it
                await self._run(self._table.forget_deferred)
            raise
        except Exception:
            with contextlib.suppress(DiskError, NoRoomError, LimitTooSmallError):
                await self._write(self._table.close_block, self._table.closing_cost)
            raise
        return Changes(
            len(self._table) - self._known, self._rewritten.count, self._seen.missing(self._known)
        )

    async def _add(self, page: Sequence[ObjectInfo]) -> None:
        found = await self._run(lambda: self._table.compare(page))
        self.listed += len(page)
        if self.listed > len(self._table) + len(found.new) + _MOST_REPEATED:
            raise SourceUnreachableError(
                f"the source has listed {self.listed} units, of which only "
                f"{len(self._table) + len(found.new)} differ: its listing goes round in circles"
            )
        self._rewritten.add([row[-1] for row in found.rewritten])
        if self._defers and 2 * self._rewritten.count > self._known:
            raise RewrittenError(
                f"more than half of the {self._known} units that were listed before have another ETag, "
                "size or label now"
            )
        if found.cost:
            await self._write(lambda: self._table.add(found, defer=self._defers), found.cost)
        self._seen.add(found.numbers)

    async def _write(self, write: Callable[[], None], cost: int) -> None:
        self._room.reserve(cost)
        ends = len(self._table.ends)
        try:
            await self._run(write)
        finally:
            self._room.settle()
        if len(self._table.ends) > ends:
            self._block_ended()

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


class _Bits:
    """A set of numbers from 0 on, one bit each."""

    def __init__(self) -> None:
        self.count = 0
        self._bits = np.zeros(0, np.uint8)

    def add(self, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        new = np.unique(np.array(numbers, np.int64))
        if (lacking := int(new[-1]) // 8 + 1 - len(self._bits)) > 0:
            more = max(lacking, len(self._bits) // 4)  # to grow cheaply
            self._bits = np.append(self._bits, np.zeros(more, np.uint8))
        places, masks = new >> 3, np.uint8(1) << (new & 7).astype(np.uint8)
        self.count += int(((self._bits[places] & masks) == 0).sum())
        np.bitwise_or.at(self._bits, places, masks)

    def missing(self, end: int) -> NDArray[np.int64]:
        """The numbers below `end` that are not in the set."""
        bits = np.unpackbits(self._bits, count=None, bitorder="little")[:end]
        missing = np.ones(end, np.bool_)
        missing[: len(bits)] = bits == 0
        return np.flatnonzero(missing)
