"""Pages of units from a lister, over several attempts: an attempt continues where the last one failed."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
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

_AHEAD = 4  # pages
_MOST = 1 << 12  # units of a page
_MOST_EMPTY = 1000  # pages in a row; where all objects have been deleted, some stores give a few


class SourcePages:
    """The pages of one listing. `goes_on`: the next attempt continues. If it is False, the store has no
    order in which the listing could continue, and the caller begins with `anew`. `left_out`: what the
    listing left out so far."""

    def __init__(self, lister: Lister, source: SourceConfig) -> None:
        self.goes_on = True
        self.left_out = LeftOut()
        self._lister, self._source = lister, source
        self._lanes: Lanes | None = Lanes()
        # In a store of one lane: the last complete object, the object of the last unit, the place of the
        # last unit over all attempts and of this attempt. A place is (key, begin).
        self._after = self._key = ""
        self._last = self._place = (b"", -1.0)
        self._ordered = True
        self._sweep: ListingSweep | None = None
        self._ahead: _ReadAhead | None = None
        self._page: list[ObjectInfo] = []  # not taken yet

    def anew(self) -> SourcePages:
        """The pages of another listing of the same source."""
        self.close()
        other = SourcePages(self._lister, self._source)
        other._lanes = self._lanes and Lanes()
        return other

    async def read(self) -> AsyncIterator[list[ObjectInfo]]:
        """Yields the pages that were not taken yet, with at most MOST_AT_ONCE units each. A page is taken
        when the next page is requested. Raises the lister's errors."""
        while self._page or await self._fetch():
            yield self._page[:MOST_AT_ONCE]
            del self._page[:MOST_AT_ONCE]

    def close(self) -> None:
        """Ends all requests. A thread ends when its store answers."""
        if self._ahead is not None:
            self._ahead.close()
        if self._sweep is not None:
            self._sweep.close()

    async def _fetch(self) -> bool:
        """Gets units from the lister. Returns whether there are any."""
        if self._ahead is None:
            self._ahead = _ReadAhead(self._attempt())
        try:
            self._page = await self._ahead.next()
        except Exception:  # of the lister: the next call begins another attempt
            self._ahead = None
            raise
        return bool(self._page)

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
            self._lanes, self.goes_on = None, False
            raise SourceUnreachableError(
                f"{error}: the source is listed by one request at a time"
            ) from error
        except Exception:
            self.goes_on = self._lanes is not None or self._ordered
            raise

    def _one_by_one(self) -> Generator[list[ObjectInfo], None, None]:
        """Yields the pages of a store that is listed by one request after the other."""
        self._place = (encoded(self._after), math.inf)
        last: list[ObjectInfo] = []
        empty = 0
        for page in self._lister.units(self._source, self._after, self.left_out):
            empty = 0 if page else empty + 1
            if page and page == last:
                raise UnusableListingError("the store listed the same page twice in a row")
            if empty > _MOST_EMPTY:
                raise UnusableListingError(f"the store listed {empty} empty pages")
            last = page
            yield self._unlisted(page)

    def _unlisted(self, page: list[ObjectInfo]) -> list[ObjectInfo]:
        """Returns the page without units that an earlier attempt listed. An attempt repeats the units of
        the object at which the one before ended, because a page may end in the middle of an object."""
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
    """Reads pages in a thread, so that no page waits for the next page. No exit waits for the thread: a
    store that hangs must not keep the daemon from ending."""

    def __init__(self, pages: Generator[list[ObjectInfo], None, None]) -> None:
        self._read: deque[list[ObjectInfo] | BaseException | None] = deque()  # None: the end
        self._room = threading.Semaphore(_AHEAD)
        self._closed = False
        self._report: Callable[[], object] = lambda: None
        threading.Thread(target=self._run, args=(pages,), name="listing", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self._room.release()

    async def next(self) -> list[ObjectInfo]:
        """Returns all units that were read by now, at least one; [] at the end. Raises the error of the
        store after the units that were read before the error."""
        arrived = asyncio.Event()
        self._report = partial(asyncio.get_running_loop().call_soon_threadsafe, arrived.set)
        units: list[ObjectInfo] = []
        while len(units) < _MOST and (self._read or not units):
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
                for page in pages:
                    self._put(page)
                    self._room.acquire()
                    if self._closed:
                        return
            except BaseException as error:
                end = error
        self._put(end)

    def _put(self, item: list[ObjectInfo] | BaseException | None) -> None:
        self._read.append(item)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._report()
