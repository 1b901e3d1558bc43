"""The user's code in a thread of its own, in step with the event loop.

Reading a unit, the user's code computes and waits for bytes by turns, as it likes. The bytes come by the
worker's event loop, like all others: with its limits and its patience. While the code computes the loop
stands still, as it does for a transform, so that whoever computes for ever is noticed.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Step(Generic[T]):
    """Something for the thread to do."""

    code: Callable[[], T]
    result: Future[T] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class _Wish:
    """Something for the loop to do."""

    work: Callable[[], Awaitable[Any]]
    result: Future[Any] = field(default_factory=Future)


class Lockstep:
    """One thread, the same for all steps: what libraries keep by the thread stays usable."""

    def __init__(self) -> None:
        self._steps: queue.SimpleQueue[_Step[Any]] = queue.SimpleQueue()
        self._said: queue.SimpleQueue[_Step[Any] | _Wish] = queue.SimpleQueue()
        self._one_at_a_time = asyncio.Lock()
        self._wake: Callable[[], object] = lambda: None
        self._thread: threading.Thread | None = None

    async def run(self, code: Callable[[], T]) -> T:
        """What the code returns, or raises. Keeps the loop from running until it ends or calls `wait`,
        in whichever thread."""
        async with self._one_at_a_time:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="guest", daemon=True)
                self._thread.start()
            loop, said = asyncio.get_running_loop(), asyncio.Event()
            self._wake = lambda: loop.call_soon_threadsafe(said.set)
            step = _Step(code)
            self._steps.put(step)
            granting: set[asyncio.Task[None]] = set()
            while not step.result.done():
                if granting:
                    await said.wait()
                    said.clear()
                for one in self._heard(wait=not granting):
                    if isinstance(one, _Wish):
                        task = asyncio.ensure_future(_grant(one))
                        granting.add(task)
                        task.add_done_callback(granting.discard)
                        task.add_done_callback(lambda _: said.set())
            return step.result.result()

    def wait(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` brings, done by the loop. For threads of the user's code, while a step runs."""
        wish = _Wish(work)
        self._say(wish)
        found: T = wish.result.result()
        return found

    def _work(self) -> None:
        while True:
            step = self._steps.get()
            try:
                found = step.code()
            except BaseException as error:
                step.result.set_exception(error)
            else:
                step.result.set_result(found)
            self._say(step)

    def _say(self, one: _Step[Any] | _Wish) -> None:
        self._said.put(one)
        self._wake()

    def _heard(self, *, wait: bool) -> list[_Step[Any] | _Wish]:
        """All that has been said; at least one thing, if this is to wait."""
        heard = [self._said.get()] if wait else []
        while not self._said.empty():
            heard.append(self._said.get())
        return heard


async def _grant(wish: _Wish) -> None:
    try:
        wish.result.set_result(await wish.work())
    except BaseException as error:
        wish.result.set_exception(error)
        if isinstance(error, asyncio.CancelledError):
            raise
