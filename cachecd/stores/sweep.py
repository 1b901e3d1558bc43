"""Reads a store's listing with concurrent requests (key_ranges.py), and retries failed requests."""

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
    """One attempt at a listing, from the current state of its lanes. After `close`, its threads end when
    the store replies.

    `page` requests a part of the listing once. `units` returns the units among listed objects. A failed
    request is retried after a pause. A store that throttles gets fewer concurrent requests, and more
    again when requests succeed.
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
        self._replies: deque[Future[KeyPage]] = deque()  # in the order of the lanes' requests
        self._threads = ThreadPoolExecutor(min(connections, WINDOW), "lane")
        self.cpu_s = 0.0
        """The CPU seconds of its threads."""

    def next(self) -> list[ObjectInfo] | None:
        """Returns the next units, perhaps an empty list, or None at the end of the listing. Blocks. If
        the store fails, returns all units before the error, and then raises the error. Another sweep can
        continue with the lanes.
        """
        asks = self._lanes.asks
        if not asks:
            return None
        for ask in asks[len(self._replies) :]:
            self._replies.append(self._threads.submit(self._with_retries, ask))
        page = self._replies[0].result()
        self._replies.popleft()
        return self._units(self._lanes.answer(page))

    def close(self) -> None:
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._turn:
            self._turn.notify_all()

    def _with_retries(self, ask: Ask) -> KeyPage:
        began, failures = time.monotonic(), 0
        while True:
            try:
                return self._attempt(ask)
            except TransientError as error:
                failures += 1
                spent = time.monotonic() - began >= self._retry.within
                # The tries of a throttled request do not count, because it may wait long for others.
                spent = spent or (not error.throttled and failures >= self._retry.tries)
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
        cpu = time.thread_time()
        try:
            page = self._page(ask)
        except TransientError as error:
            if error.throttled:
                with self._turn:
                    self._pace.overloaded(time.monotonic(), began, error.after)
            raise
        finally:
            with self._turn:
                self.cpu_s += time.thread_time() - cpu
                self._active -= 1
                self._turn.notify_all()
        with self._turn:
            self._pace.succeeded()
        return page
