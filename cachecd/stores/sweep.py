"""Reads a store's listing by several requests at a time (lanes.py), with its own retries."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from cachecd.errors import SourceUnreachableError
from cachecd.model import ObjectInfo
from cachecd.stores.backend import TransientError
from cachecd.stores.key_ranges import WINDOW, Ask, KeyPage, Lanes
from cachecd.stores.retry import Pace, Retry


class ListingSweep:
    """One attempt at a listing, from the present state of its lanes. After `close` its threads end as soon
    as the store replies.

    `page` makes one attempt at a reply. `units` returns the units among listed objects. Failed requests are
    retried after a while. A store that throttles gets fewer requests at a time, and more again as they
    succeed.
    """

    def __init__(
        self,
        page: Callable[[Ask], KeyPage],
        lanes: Lanes,
        where: str,
        connections: int,
        retry: Retry | None = None,
        units: Callable[[list[ObjectInfo]], list[ObjectInfo]] = list,
    ) -> None:
        self._page = page
        self._units = units
        self._lanes = lanes
        self._where = where
        self._retry = retry or Retry()
        self._pace = Pace(min(connections, WINDOW))
        self._turn = threading.Condition()
        self._active = 0
        self._closed = threading.Event()
        self._answers: deque[Future[KeyPage]] = deque()  # as the lanes ask for them
        self._threads = ThreadPoolExecutor(min(connections, WINDOW), "lane")

    def next(self) -> list[ObjectInfo] | None:
        """Returns the next units, perhaps none; None at the end of the listing. Blocks. Raises a store's
        error after all units before the error. The lanes then keep their state, and another sweep continues
        with them."""
        asks = self._lanes.asks
        if not asks:
            return None
        for ask in asks[len(self._answers) :]:
            self._answers.append(self._threads.submit(self._patiently, ask))
        page = self._answers[0].result()
        self._answers.popleft()
        return self._units(self._lanes.answer(page))

    def close(self) -> None:
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._turn:
            self._turn.notify_all()

    def _patiently(self, ask: Ask) -> KeyPage:
        began, failures = time.monotonic(), 0
        while True:
            try:
                return self._attempt(ask)
            except TransientError as error:
                failures += 1
                spent = time.monotonic() - began >= self._retry.within
                # Throttled, all wait for each other: only time tells.
                spent = spent if error.throttled else spent or failures >= self._retry.tries
                if error.denied or spent or self._closed.is_set():
                    raise SourceUnreachableError(f"{self._where}: {error}") from error
            self._closed.wait(self._retry.pause(failures, random.random()))

    def _attempt(self, ask: Ask) -> KeyPage:
        with self._turn:
            while not self._closed.is_set():
                wait = self._pace.not_before - time.monotonic()
                if self._active < self._pace.allowed and wait <= 0:
                    break
                self._turn.wait(max(wait, 0.0) or None)
            self._active += 1
            began = time.monotonic()
        try:
            page = self._page(ask)
        except TransientError as error:
            if error.throttled:
                with self._turn:
                    self._pace.overloaded(time.monotonic(), began, error.after)
            raise
        finally:
            with self._turn:
                self._active -= 1
                self._turn.notify_all()
        with self._turn:
            self._pace.succeeded()
        return page
