"""The listing of a generation, in the thread of its table: pages for feeding, and keeping it current."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from cachecd.listing.pages import Page, units_of
from cachecd.listing.table import Table
from cachecd.stream import Place, Shape, Unit

Result = TypeVar("Result")


class GenerationListing:
    """The table of one generation. `waits`: the first listing goes on, so that streams wait at the end of
    what is listed. `classes`: the names of all classes, by number."""

    def __init__(self, table: Table, thread: ThreadPoolExecutor) -> None:
        """`thread` made the table."""
        self.table, self.thread = table, thread
        self.waits = table.completed == 0
        self.classes: tuple[str, ...] = ()

    @staticmethod
    async def open(path: Path) -> GenerationListing:
        """Opens or creates listing.sqlite. DiskError, DamagedError."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="listing")
        try:
            loop = asyncio.get_running_loop()
            table = await loop.run_in_executor(thread, Table, path)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return GenerationListing(table, thread)

    async def page(self, shape: Shape, stream: int, place: Place, excluded: frozenset[str]) -> Page:
        """The next units of a stream, without those of excluded keys. DiskError."""
        return await self.run(
            lambda: units_of(self.table, shape, stream, *place, excluded=excluded)
        )

    async def units(self, numbers: Sequence[int]) -> list[Unit | None]:
        """Units by number; None for a number that is not listed. DiskError."""

        def look_up() -> list[Unit | None]:
            listed = [number for number in numbers if number < len(self.table)]
            units = dict(zip(listed, self.table.units(listed), strict=True))
            return [units.get(number) for number in numbers]

        return await self.run(look_up)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Does work on the table in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, work)

    async def close(self) -> None:
        """Closes the file; what was begun ends first."""
        await self.run(self.table.close)
        await asyncio.to_thread(self.thread.shutdown)
