"""Pages of units from a lister, over several attempts: an attempt continues where the last one failed."""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

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

Result = TypeVar("Result")


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
        self._reader: ListingSweep | _ReadAhead | None = None
        self._page: list[ObjectInfo] = []  # not taken yet
        self._ended = False

    def anew(self) -> SourcePages:
        """The pages of another listing of the same source."""
        self.close()
        other = SourcePages(self._lister, self._source)
        other._lanes = self._lanes and Lanes()
        return other

    async def read(self) -> AsyncIterator[list[ObjectInfo]]:
        """Yields the pages that were not taken yet, with at most MOST_AT_ONCE units each. A page is taken
        when the next page is requested. Raises the lister's errors."""
        while bool(self._page) or await _aside(self._fetch):
            yield self._page[:MOST_AT_ONCE]
            del self._page[:MOST_AT_ONCE]

    def close(self) -> None:
        """Ends all requests. A thread ends when its store answers."""
        if self._reader is not None:
            self._reader.close()

    def _fetch(self) -> bool:
        """Gets units from the lister. Returns whether there are any."""
        while not self._page and not self._ended:
            if self._reader is None:
                self._reader = self._open()
            try:
                page = self._reader.next()
            except BaseException as error:
                self.close()
                self._reader = None
                self.goes_on = self._lanes is not None or self._ordered
                if isinstance(error, OutOfOrderError):
                    self._lanes, self.goes_on = None, False
                    raise SourceUnreachableError(
                        f"{error}: the source is listed by one request at a time"
                    ) from error
                raise
            self._ended = page is None
            self._page = (page or []) if self._lanes is not None else self._unlisted(page or [])
        return bool(self._page)

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

    def _open(self) -> ListingSweep | _ReadAhead:
        if self._lanes is not None and (
            sweep := self._lister.sweep(self._source, self._lanes, self.left_out)
        ):
            return sweep
        self._lanes = None
        after = self._after
        self._place = (encoded(after), math.inf)
        return _ReadAhead(lambda: self._lister.units(self._source, after, self.left_out))


class _ReadAhead:
    """Reads pages of a listing in a separate thread, so that no page waits for the next page."""

    def __init__(self, pages: Callable[[], Iterator[list[ObjectInfo]]]) -> None:
        self._read: queue.Queue[list[ObjectInfo] | BaseException | None] = queue.Queue(_AHEAD)
        self._end: list[BaseException | None] = []
        self._closed = threading.Event()
        threading.Thread(target=self._run, args=(pages,), name="pages", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def next(self) -> list[ObjectInfo] | None:
        """All pages that were read by now, at least one; None at the end. Raises the error of the store
        after the pages that were read before the error."""
        page: list[ObjectInfo] = []
        while not self._end and not (page and self._read.empty()) and len(page) < _MOST:
            match self._read.get():
                case list(more):
                    page += more
                case end:
                    self._end.append(end)
        if not page and self._end and self._end[0] is not None:
            raise self._end[0]
        return page or None

    def _run(self, pages: Callable[[], Iterator[list[ObjectInfo]]]) -> None:
        last: list[ObjectInfo] = []
        empty = 0
        try:
            for page in pages():
                empty = 0 if page else empty + 1
                if page and page == last:
                    raise UnusableListingError("the store listed the same page twice in a row")
                if empty > _MOST_EMPTY:
                    raise UnusableListingError(f"the store listed {empty} empty pages")
                last = page
                if not self._put(page):
                    return
        except BaseException as error:
            self._put(error)
        else:
            self._put(None)

    def _put(self, message: list[ObjectInfo] | BaseException | None) -> bool:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._read.put(message, timeout=0.1)
                return True
        return False


async def _aside(work: Callable[[], Result]) -> Result:
    """Runs work in a thread that no exit waits for: a store that hangs must not keep the daemon from
    ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def report(call: Callable[[Any], None], outcome: Any) -> None:
        if not done.cancelled():
            call(outcome)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = (done.set_result, work())
        except BaseException as error:
            outcome = (done.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(report, *outcome)

    threading.Thread(target=run, name="listing", daemon=True).start()
    return await done
