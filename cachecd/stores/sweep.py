"""Reads a store's listing by several requests at a time, as Lanes has it, with its own patience."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cachecd.errors import SourceUnreachableError
from cachecd.model import ObjectInfo
from cachecd.stores.backend import TransientError
from cachecd.stores.lanes import WINDOW, Ask, Lanes, Page
from cachecd.stores.patience import Pace, Retry


@dataclass(slots=True)
class _Job:
    """An answer, once it is `done`, or why there is none."""

    ask: Ask
    page: Page | None = None
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Sweep:
    """One attempt at a listing, from where its lanes are. `close` lets its threads go, once the store
    answers them.

    `page` makes one attempt at an answer, `units` returns the units among listed objects. What fails is
    tried again after a while; a store that throttles gets fewer requests at a time, and more again as they
    succeed.
    """

    def __init__(
        self,
        page: Callable[[Ask], Page],
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
        self._todo: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._jobs: deque[_Job] = deque()  # as the lanes ask for them
        self._threads = 0

    def next(self) -> list[ObjectInfo] | None:
        """The units that follow, perhaps none; None at the end of the listing. Blocks. Raises what the
        store has raised after all that came before it: the lanes are then as they were, and another sweep
        goes on with them."""
        asks = self._lanes.asks
        if not asks:
            return None
        for ask in asks[len(self._jobs) :]:
            self._jobs.append(_Job(ask))
            self._todo.put(self._jobs[-1])
        while self._threads < min(self._pace.allowed, len(asks)):
            self._threads += 1
            threading.Thread(target=self._work, name="lane", daemon=True).start()
        job = self._jobs[0]
        job.done.wait()
        if job.error is not None:
            raise job.error
        assert job.page is not None
        self._jobs.popleft()
        return self._units(self._lanes.answer(job.page))

    def close(self) -> None:
        self._closed.set()
        for _ in range(self._threads):
            self._todo.put(None)
        with self._turn:
            self._turn.notify_all()

    def _work(self) -> None:
        while (job := self._todo.get()) is not None and not self._closed.is_set():
            try:
                job.page = self._patiently(job.ask)
            except BaseException as error:
                job.error = error
            job.done.set()

    def _patiently(self, ask: Ask) -> Page:
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

    def _attempt(self, ask: Ask) -> Page:
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
