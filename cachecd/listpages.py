"""Pages of a listing, read ahead, and a store that goes round in circles told by them."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator

from cachecd.errors import SourceUnreachableError
from cachecd.model import ObjectInfo

_AHEAD = 4  # pages
_MOST = 1 << 12  # units handed over at a time: a block of an index
_MOST_EMPTY = 1000  # pages in a row; where all objects have been deleted, some stores give a few


class CircleError(SourceUnreachableError):
    """The store lists the same objects again and again."""


class Pages:
    """Pages of a listing, read ahead by a thread of its own, so that none that has come waits for the
    next. `close` lets the thread go, once its store answers."""

    def __init__(self, pages: Callable[[], Iterator[list[ObjectInfo]]]) -> None:
        self._read: queue.Queue[list[ObjectInfo] | BaseException | None] = queue.Queue(_AHEAD)
        self._end: list[BaseException | None] = []
        self._closed = threading.Event()
        threading.Thread(target=self._run, args=(pages,), name="pages", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(queue.Full):
            self._read.put_nowait(None)  # whoever waits in `next` goes on

    def next(self) -> tuple[list[ObjectInfo], str] | None:
        """All that has come, at least a page and at most a few, and ""; None at the end. Raises what the
        store has raised after all that came before it."""
        batch: list[ObjectInfo] = []
        while not self._end and not (batch and self._read.empty()) and len(batch) < _MOST:
            found = self._read.get()
            if isinstance(found, list):
                batch += found
            else:
                self._end.append(found)
        if not batch and self._end and self._end[0] is not None:
            raise self._end[0]
        return (batch, "") if batch else None

    def _run(self, pages: Callable[[], Iterator[list[ObjectInfo]]]) -> None:
        last: list[ObjectInfo] = []
        empty = 0
        try:
            for page in pages():
                empty = 0 if page else empty + 1
                if page and page == last:
                    raise CircleError("the store has listed the same page twice in a row")
                if empty > _MOST_EMPTY:
                    raise CircleError(f"the store has listed {empty} pages with nothing in them")
                last = page
                if not self._put(page):
                    return
        except BaseException as error:
            self._put(error)
        else:
            self._put(None)

    def _put(self, found: list[ObjectInfo] | BaseException | None) -> bool:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._read.put(found, timeout=0.1)
                return True
        return False
