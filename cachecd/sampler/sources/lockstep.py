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
        in whichever thread.

        If this is cancelled, each `wait` raises CancelledError until the code has ended: the thread is free
        for the next step.
        """
        async with self._one_at_a_time:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="guest", daemon=True)
                self._thread.start()
            loop, said = asyncio.get_running_loop(), asyncio.Event()
            self._wake = lambda: loop.call_soon_threadsafe(said.set)
            step = _Step(code)
            self._steps.put(step)
            granting: dict[asyncio.Task[None], _Wish] = {}
            cancelled: asyncio.CancelledError | None = None
            while not step.result.done():
                if granting:
                    try:
                        await said.wait()
                    except asyncio.CancelledError as error:
                        cancelled = error
                        for task, wish in list(granting.items()):
                            task.cancel()
                            _refuse(wish, error)
                        granting.clear()
                    said.clear()
                for one in self._heard(wait=not granting):
                    if isinstance(one, _Wish) and cancelled is not None:
                        _refuse(one, cancelled)
                    elif isinstance(one, _Wish):
                        task = asyncio.ensure_future(_grant(one))
                        granting[task] = one
                        task.add_done_callback(lambda task: granting.pop(task, None))
                        task.add_done_callback(lambda _: said.set())
            if cancelled is not None:
                raise cancelled
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
        found = await wish.work()
    except BaseException as error:
        _refuse(wish, error)
        if isinstance(error, asyncio.CancelledError):
            raise
    else:
        if not wish.result.done():
            wish.result.set_result(found)


def _refuse(wish: _Wish, error: BaseException) -> None:
    if not wish.result.done():
        wish.result.set_exception(error)
