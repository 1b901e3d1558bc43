"""Updates a table from the pages of a lister."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cachecd.errors import DiskError, RewrittenError, SourceUnreachableError
from cachecd.listing.table import MOST_AT_ONCE, Table
from cachecd.model import ObjectInfo

# A source that changes while it is listed may name a few objects twice.
_MOST_REPEATED = 10_000

Result = TypeVar("Result")


class UnusableListingError(SourceUnreachableError):
    """The listing contradicts itself or earlier listings. The next attempt must list the whole source."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that a complete listing found: counts of new and rewritten units. `gone`: the numbers
    of all units that disappeared from the source."""

    new: int
    rewritten: int
    gone: NDArray[np.int64]


class Listing:
    """One listing of a source, in one or more attempts.

    Each page is synced. A listing takes one bit of memory for each unit. After an error the caller calls
    `read` again, with the pages that were not read yet.
    """

    def __init__(
        self,
        table: Table,
        thread: Executor,
        reserve: Callable[[int, int, bool], Awaitable[bool]],
        page_bytes: Callable[[], int],
        judges: bool = False,
        block_ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`thread`: an executor with one thread, which made the table.

        `reserve(size, grown, must_fit)` reserves `size` bytes for the next write. `grown`: the bytes that
        the last write used. Without room, `reserve` waits if `must_fit`; otherwise it returns False, and
        the page is split. Single units, and parts of at most `page_bytes`, must fit.

        `judges`: this is the first listing since the start of the daemon. If more than half of the known
        units were rewritten, the listing is refused, and no ETag is replaced. `block_ended` is called
        when workers can get more units."""
        self.listed = 0  # units
        self._table = table
        self._thread = thread
        self._reserve, self._page_bytes = reserve, page_bytes
        self._grown = 0  # bytes that the last write used of its reservation
        self._num_before = len(table)
        self._defers = judges and table.completed > 0
        self._block_ended = block_ended
        self._seen, self._rewritten = _Bits(), _Bits()
        self._begun = False

    async def read(self, pages: AsyncIterator[Sequence[ObjectInfo]]) -> Changes:
        """Reads pages of units to the end of the listing. A later attempt continues after the last page
        that was read.

        If the attempt fails, the open block ends, so that workers can get its units, and the error is
        raised: SourceError, DiskError. RewrittenError refuses the whole listing. After RewrittenError and
        UnusableListingError the caller must make another Listing.
        """
        try:
            if not self._begun:
                await self._run(self._table.forget_deferred)
                self._begun = True
            async for page in pages:
                for start in range(0, len(page), MOST_AT_ONCE):
                    await self._add(page[start : start + MOST_AT_ONCE])
            if not self.listed and len(self._table):
                raise UnusableListingError(
                    f"the source is empty, but {len(self._table)} units were listed before: the old "
                    "listing stays in use. Is the source mounted?"
                )
            gone = self._seen.missing(self._num_before)
            await self._run(lambda: self._table.check_index(gone.tolist()))
            await self._close(self._table.finish)
        except RewrittenError:
            with contextlib.suppress(DiskError):  # the next listing would drop them too
                await self._run(self._table.forget_deferred)
            raise
        except Exception:
            with contextlib.suppress(DiskError):
                await self._close(self._table.close_block)
            raise
        return Changes(len(self._table) - self._num_before, self._rewritten.count, gone)

    async def _add(self, page: Sequence[ObjectInfo]) -> None:
        changes = await self._run(lambda: self._table.compare(page))
        must_fit = len(page) == 1 or changes.cost <= self._page_bytes()
        if changes.cost and not await self._reserve(changes.cost, self._grown, must_fit):
            await self._add(page[: len(page) // 2])
            await self._add(page[len(page) // 2 :])
            return
        listed = self.listed + len(page)
        if listed > len(self._table) + len(changes.new) + _MOST_REPEATED:
            raise UnusableListingError(
                f"the source listed {listed} units, but only "
                f"{len(self._table) + len(changes.new)} of these are different units: its listing "
                "repeats itself"
            )
        self._rewritten.add([row[-1] for row in changes.rewritten])
        if self._defers and 2 * self._rewritten.count > self._num_before:
            raise RewrittenError(
                f"more than half of the {self._num_before} units that were listed before now have another "
                "ETag, size or label"
            )
        if changes.cost:
            await self._write(lambda: self._table.add(changes, defer=self._defers))
        self._seen.add(changes.numbers)
        self.listed = listed

    async def _close(self, close: Callable[[], None]) -> None:
        if cost := await self._run(self._table.closing_cost):
            await self._reserve(cost, self._grown, True)
        await self._write(close)

    async def _write(self, write: Callable[[], None]) -> None:
        """Writes to the table, for which room is reserved already."""

        def measured() -> int:
            before = self._table.allocated
            write()
            return self._table.allocated - before

        ends = len(self._table.ends)
        self._grown = await self._run(measured)
        if len(self._table.ends) > ends:
            await self._reserve(0, self._grown, False)  # releases the unused room to shards
            self._grown = 0
            self._block_ended()

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


class _Bits:
    """A set of unit numbers, one bit for each number."""

    def __init__(self) -> None:
        self.count = 0
        self._bits = np.zeros(0, np.uint8)

    def add(self, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        new = np.unique(np.array(numbers, np.int64))
        if (missing := int(new[-1]) // 8 + 1 - len(self._bits)) > 0:
            more = max(missing, len(self._bits) // 4)  # rarely reallocates
            self._bits = np.append(self._bits, np.zeros(more, np.uint8))
        places, masks = new >> 3, np.uint8(1) << (new & 7).astype(np.uint8)
        self.count += int(((self._bits[places] & masks) == 0).sum())
        np.bitwise_or.at(self._bits, places, masks)

    def missing(self, end: int) -> NDArray[np.int64]:
        """Returns the numbers below `end` that are not in the set."""
        bits = np.unpackbits(self._bits, bitorder="little")[:end]
        missing = np.ones(end, np.bool_)
        missing[: len(bits)] = bits == 0
        return np.flatnonzero(missing)
