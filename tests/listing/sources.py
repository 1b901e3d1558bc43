"""Scripted sources: objects by number, and listings of them, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from cachecd.errors import DiskError
from cachecd.listing.table import Table
from cachecd.listing.table_update import Changes, Listing
from cachecd.model import ObjectInfo


def unit(number: int, etag: str = "e", size: int = 100) -> ObjectInfo:
    return ObjectInfo(f"{number // 100:03d}/{number:06d}.jpg", size, etag)


def units(start: int, stop: int, etag: str = "e") -> list[ObjectInfo]:
    return [unit(number, etag) for number in range(start, stop)]


async def pages(
    found: Sequence[ObjectInfo], count: int = 1000, fails: Exception | None = None
) -> AsyncIterator[Sequence[ObjectInfo]]:
    for start in range(0, len(found), count):
        yield found[start : start + count]
    if fails is not None:
        raise fails


class Source:
    """A table with its thread, and listings of what a test says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.thread = ThreadPoolExecutor(1)
        self.room = Ledger()
        self.blocks = 0
        self.table = self.thread.submit(Table, path).result()

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.thread.submit(self.table.close).result()
        self.thread.shutdown()

    def listing(self, judges: bool = False) -> Listing:
        return Listing(
            *(self.table, self.thread, self.room.reserve, lambda: self.room.page, judges),
            self._block_ended,
        )

    def list(
        self,
        found: Sequence[ObjectInfo],
        fails: Exception | None = None,
        judges: bool = False,
        listing: Listing | None = None,
    ) -> Changes:
        listing = listing or self.listing(judges)
        return asyncio.run(listing.read(pages(found, fails=fails)))

    def units(self, numbers: Iterable[int]) -> list[ObjectInfo]:
        """As they were listed."""
        read = self.thread.submit(self.table.units, list(numbers)).result()
        return [ObjectInfo(u.key, u.size, u.etag, u.begin, u.label) for u in read]

    def _block_ended(self) -> None:
        self.blocks += 1


class Ledger:
    """The room under a limit: it grants what fits into `left`."""

    def __init__(self, left: int = 1 << 40) -> None:
        self.left = left
        self.page = 1 << 40
        self.most = 0

    async def reserve(self, size: int, grown: int, must_fit: bool) -> bool:
        if not must_fit and size > self.page:
            return False
        if size > self.left:
            raise DiskError(f"{size} bytes of {self.left}")
        self.most = max(self.most, size)
        return True
