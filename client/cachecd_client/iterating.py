"""Generators that threads of native code advance, brought to an end before the interpreter's."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Generator
from typing import Any, Generic, Self, TypeVar

_T = TypeVar("_T")

_QUIET = 0.2  # seconds in which a call returns, and a pipeline that fills up comes to its end, or to rest
_MARGIN = 0.02


class Iterating(Generic[_T]):
    """An iterator over a generator; what native code asks for after the interpreter began to end is over.

    The interpreter's end kills a native thread that is in Python then, and who joins the thread, as the
    destructors of tf.data's iterators do, waits for ever. So nobody may be there: `interrupt` is called to
    make a call end that may take long, and then that call is waited for.
    """

    def __init__(self, generator: Generator[_T, None, None], interrupt: Callable[[], None]) -> None:
        self._generator = generator
        self._interrupt = interrupt
        self._running = threading.Lock()
        self._ending = False
        _alive.add(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _T:
        with self._running:
            if self._ending:
                raise StopIteration
            return next(self._generator)

    def end(self) -> None:
        """Ends the generator, once a call that runs has returned."""
        self._ending = True
        if not self._running.acquire(timeout=_QUIET):
            self._interrupt()
            self._running.acquire()
        self._generator.close()
        self._running.release()


_alive: weakref.WeakSet[Iterating[Any]] = weakref.WeakSet()


def _end_all() -> None:
    if not _alive:
        return
    for one in list(_alive):
        one.end()
    del one
    # It is told so when it asks, and lets go of its iterator then; or it has enough, and never asks.
    deadline = time.monotonic() + _QUIET
    while _alive and time.monotonic() < deadline:
        time.sleep(_MARGIN)
    time.sleep(_MARGIN)  # for whoever let go of the last one to leave Python


atexit.register(_end_all)
