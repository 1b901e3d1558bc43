"""Format `python`: the user's class reads the records of a unit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, TypeVar

from cachecd import model
from cachecd.config import SourceConfig
from cachecd.sampler.formats.content import Content
from cachecd.sampler.formats.records import Format
from cachecd.sampler.meter import METER
from cachecd.sampler.user_reader import NamedUnit, Record, UserReader
from cachecd.sampler.usercode import BlamedError, imported
from cachecd.sampler.view import StoreView

T = TypeVar("T")


class Python(Format):
    """Reads units with one object of the user's class, which is constructed and used in one thread.

    If reading a unit raises, the unit is read once more from its start. Records that were already yielded
    are skipped.
    """

    def __init__(self, source: SourceConfig) -> None:
        """ConfigError if the class does not exist. Imports it."""
        assert source.reader is not None, "the configuration requires a reader"
        imported(source.reader, "reader", "class")  # before the first unit, in the main thread
        self._source = source
        self._steps = Lockstep()
        self._reader: UserReader | None = None

    def span(self, unit: model.Unit) -> None:
        return None

    async def read(
        self, unit: model.Unit, content: Content
    ) -> AsyncGenerator[tuple[int, Record], None]:
        yielded = 0
        first: BlamedError | None = None
        while True:
            try:
                async with aclosing(self._records(unit, content, yielded)) as records:
                    async for record in records:
                        yielded += 1
                        yield 0, record
                return
            except BlamedError as error:
                if first is not None:
                    raise first from error
                first = error

    async def _records(
        self, unit: model.Unit, content: Content, skip: int
    ) -> AsyncGenerator[Record, None]:
        """Yields the records after the first `skip`."""
        steps = self._steps
        store = StoreView(content, steps.wait)
        reader = await steps.run(self._make_reader)
        records = await steps.run(lambda: reader.read(NamedUnit.of(unit), store))
        try:
            # No record is read ahead: the user's code may change the yielded one to make the next.
            while (record := await steps.run(lambda: next(records, None))) is not None:
                if skip:
                    skip -= 1
                else:
                    yield record
        finally:
            await steps.run(records.close)

    def _make_reader(self) -> UserReader:
        if self._reader is None:
            self._reader = UserReader(self._source)
        return self._reader


class Lockstep:
    """Runs the user's code in a separate thread, in step with the event loop. All steps use the same
    thread, so that thread-local state of libraries stays usable.

    While the user's code computes, the event loop waits, as it does during a transform, so that endless
    computing is noticed. While the user's code waits for bytes, the event loop fetches them, with the
    limits and retries of all formats.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "guest")
        self._ident = 0
        self._one_at_a_time = asyncio.Lock()
        self._changed = threading.Condition()  # guards the attributes below
        self._loop: asyncio.AbstractEventLoop | None = None  # of the present step
        self._waits: list[Future[Any]] = []
        self._idle: asyncio.Event | None = None  # wakes `run` while the loop fetches

    async def run(self, code: Callable[[], T]) -> T:
        """Returns the result of the code, or raises the error of the code. Blocks the event loop until the
        code ends or calls `wait` from any thread.

        If this call is cancelled, each `wait` raises CancelledError, and the call ends when the code has
        ended, so that the thread is free for the next step.
        """
        async with self._one_at_a_time:
            self._loop = asyncio.get_running_loop()
            cpu = self._cpu_seconds() if METER.on else 0.0
            step = self._thread.submit(code)
            step.add_done_callback(self._wake)
            try:
                while not step.done():
                    with self._changed:
                        self._changed.wait_for(lambda: step.done() or self._pending())
                    self._idle = asyncio.Event()
                    if self._pending() and not step.done():
                        await self._idle.wait()
                    self._idle = None
            except asyncio.CancelledError:
                with self._changed:
                    self._loop = None
                for future in self._pending():
                    future.cancel()
                step.exception()  # waits until the code has ended
                raise
            if METER.on:
                METER.explain("decode", self._cpu_seconds() - cpu)
            return step.result()

    def _cpu_seconds(self) -> float:
        """Returns the CPU seconds of the thread, which must be free."""
        if not self._ident:
            self._ident = self._thread.submit(threading.get_ident).result()
        return time.clock_gettime(time.pthread_getcpuclockid(self._ident))

    def wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Returns the result of `work`, which the event loop runs. Call it from a thread of the user's code
        during a step."""
        with self._changed:
            if self._loop is None:
                raise asyncio.CancelledError
            future = asyncio.run_coroutine_threadsafe(work(), self._loop)
            self._waits = [*self._pending(), future]
            self._changed.notify()
        future.add_done_callback(self._wake)
        return future.result()

    def _pending(self) -> list[Future[Any]]:
        return [future for future in self._waits if not future.done()]

    def _wake(self, _: object) -> None:
        with self._changed:
            self._changed.notify()
            if self._loop is not None and self._idle is not None:
                self._loop.call_soon_threadsafe(self._idle.set)
