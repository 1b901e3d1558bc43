"""Reads pages of units from a lister. After a failure, the next attempt continues the listing."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial

from cachecd.config import SourceConfig
from cachecd.errors import SourceUnreachableError
from cachecd.listing.table import MOST_AT_ONCE
from cachecd.listing.table_update import UnusableListingError
from cachecd.model import ObjectInfo, encoded
from cachecd.stores.backend import LeftOut
from cachecd.stores.key_ranges import Lanes, OutOfOrderError
from cachecd.stores.sweep import ListingSweep
from cachecd.units.source_units import Lister

Listed = Callable[[float, float, int], None]

_MAX_AHEAD = 4  # pages
_MAX_UNITS = 1 << 12  # after which `next` adds no further page
_MAX_EMPTY = 1000  # pages in a row; after a deletion of all objects, some stores list a few


class SourcePages:
    """The pages of one listing. `can_continue`: the next attempt may continue this listing. If it is False,
    the store has no order that allows this, and the caller must use `restarted`. `left_out`: the objects
    that the listing omitted so far. `listed` is called for each page, in the thread that got it: its CPU
    seconds, the time of the monotonic clock when its request began, and its units."""

    def __init__(
        self,
        lister: Lister,
        source: SourceConfig,
        listed: Listed = lambda cpu_s, began, units: None,
    ) -> None:
        self.can_continue = True
        self.left_out = LeftOut()
        self._listed = listed
        self._counted = 0.0  # CPU seconds of the sweep's threads that `listed` got
        self._lister, self._source = lister, source
        self._lanes: Lanes | None = Lanes()
        # For a store that is listed with one request at a time: the last complete object, the object of
        # the last unit, and the place (key, begin) of the last unit in all attempts and in this attempt.
        self._after = self._key = ""
        self._last = self._place = (b"", -1.0)
        self._ordered = True
        self._sweep: ListingSweep | None = None
        self._ahead: _ReadAhead | None = None
        self._page: list[ObjectInfo] = []  # units that `read` has not removed yet

    def restarted(self) -> SourcePages:
        """Closes this listing, and returns the pages of a new listing of the same source."""
        self.close()
        other = SourcePages(self._lister, self._source, self._listed)
        other._lanes = self._lanes and Lanes()
        return other

    async def read(self) -> AsyncIterator[list[ObjectInfo]]:
        """Yields the pages that were not processed yet, with at most MOST_AT_ONCE units each. A page is
        processed when the caller requests the next page. Raises the lister's errors."""
        while self._page or await self._fetch():
            yield self._page[:MOST_AT_ONCE]
            del self._page[:MOST_AT_ONCE]

    def close(self) -> None:
        """Ends all requests. The thread ends when its store replies."""
        if self._ahead is not None:
            self._ahead.close()
        if self._sweep is not None:
            self._sweep.close()

    async def _fetch(self) -> bool:
        """Gets the next units from the lister. Returns whether the listing has more units."""
        if self._ahead is None:
            self._ahead = _ReadAhead(self._attempt(), self._note)
        try:
            self._page = await self._ahead.next()
        except Exception:  # the next call begins another attempt
            self._ahead = None
            raise
        return bool(self._page)

    def _note(self, cpu_s: float, began: float, units: int) -> None:
        if self._sweep is not None:
            before, self._counted = self._counted, self._sweep.cpu_s
            cpu_s += max(0.0, self._counted - before)  # each attempt has a sweep of its own
        self._listed(cpu_s, began, units)

    def _attempt(self) -> Generator[list[ObjectInfo], None, None]:
        """Yields the pages of one attempt. Blocks."""
        try:
            if self._lanes is not None:
                self._sweep = self._lister.sweep(self._source, self._lanes, self.left_out)
                if self._sweep is not None:
                    with contextlib.closing(self._sweep):
                        yield from iter(self._sweep.next, None)
                    return
            self._lanes = None
            yield from self._one_by_one()
        except OutOfOrderError as error:
            self._lanes, self.can_continue = None, False
            raise SourceUnreachableError(
                f"{error}: the source is listed with one request at a time"
            ) from error
        except Exception:
            self.can_continue = self._lanes is not None or self._ordered
            raise

    def _one_by_one(self) -> Generator[list[ObjectInfo], None, None]:
        """Yields the pages of a store that is listed with one request at a time."""
        self._place = (encoded(self._after), math.inf)
        last: list[ObjectInfo] = []
        empty = 0
        for page in self._lister.units(self._source, self._after, self.left_out):
            empty = 0 if page else empty + 1
            if page and page == last:
                raise UnusableListingError("the store listed the same page twice in a row")
            if empty > _MAX_EMPTY:
                raise UnusableListingError(f"the store listed {empty} empty pages")
            last = page
            yield self._new_units(page)

    def _new_units(self, page: list[ObjectInfo]) -> list[ObjectInfo]:
        """Returns the page without units that an earlier attempt listed. An attempt begins with the last
        object of the previous attempt, because a page may end in the middle of an object."""
        units = []
        for unit in page:
            place = encoded(unit.key), unit.begin
            self._ordered = self._ordered and place >= self._place
            self._place = place
            if self._ordered and place <= self._last:
                continue
            if unit.key != self._key:
                self._after, self._key = self._key, unit.key
            self._last = place
            units.append(unit)
        return units


class _ReadAhead:
    """Reads pages ahead in a thread. The daemon does not wait for the thread when it exits, because a
    store may hang."""

    def __init__(self, pages: Generator[list[ObjectInfo], None, None], listed: Listed) -> None:
        self._listed = listed
        self._read: deque[list[ObjectInfo] | BaseException | None] = deque()  # None: the end
        self._room = threading.Semaphore(_MAX_AHEAD)
        self._closed = False
        self._report: Callable[[], object] = lambda: None
        threading.Thread(target=self._run, args=(pages,), name="listing", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self._room.release()

    async def next(self) -> list[ObjectInfo]:
        """Waits for at least one unit. Returns the units that were read so far, or [] at the end. After
        an error, returns the units that were read before it, and then raises the error."""
        arrived = asyncio.Event()
        self._report = partial(asyncio.get_running_loop().call_soon_threadsafe, arrived.set)
        units: list[ObjectInfo] = []
        while len(units) < _MAX_UNITS and (self._read or not units):
            arrived.clear()
            if not self._read:
                await arrived.wait()
            elif isinstance(page := self._read[0], list):
                units += page
                self._read.popleft()
                self._room.release()
            elif page is None or units:
                break
            else:
                raise page
        return units

    def _run(self, pages: Generator[list[ObjectInfo], None, None]) -> None:
        end: BaseException | None = None
        with contextlib.closing(pages):
            try:
                while (page := self._timed(pages)) is not None:
                    self._put(page)
                    self._room.acquire()
                    if self._closed:
                        return
            except BaseException as error:
                end = error
        self._put(end)

    def _timed(self, pages: Generator[list[ObjectInfo], None, None]) -> list[ObjectInfo] | None:
        began, cpu = time.monotonic(), time.thread_time()
        page = next(pages, None)
        self._listed(time.thread_time() - cpu, began, len(page or ()))
        return page

    def _put(self, item: list[ObjectInfo] | BaseException | None) -> None:
        self._read.append(item)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._report()
