"""Format `python`: the user's class reads the records of a unit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, TypeVar

from cachecd import model
from cachecd.config import SourceConfig
from cachecd.sampler.formats.content import Content
from cachecd.sampler.formats.records import Format
from cachecd.sampler.user_reader import NamedUnit, Record, UserReader
from cachecd.sampler.usercode import BlamedError, imported
from cachecd.sampler.view import StoreView

T = TypeVar("T")


class Python(Format):
    """Reads units by one object of the class, which is made and used in one thread.

    A unit that raises is read once more from its start; records that it gave before are passed over. A part
    of a unit is read in the same way.
    """

    def __init__(self, source: SourceConfig) -> None:
        """ConfigError if the class does not exist. Imports it."""
        assert source.reader is not None, "the configuration requires a reader"
        imported(source.reader, "reader", "class")  # ahead of the first unit, in the main thread
        self._source = source
        self._steps = Lockstep()
        self._reader: UserReader | None = None

    def span(self, unit: model.Unit) -> None:
        return None

    async def read(
        self, unit: model.Unit, content: Content
    ) -> AsyncGenerator[tuple[int, Record], None]:
        made = 0
        first: BlamedError | None = None
        while True:
            try:
                async with aclosing(self._records(unit, content, made)) as records:
                    async for record in records:
                        made += 1
                        yield 0, record
                return
            except BlamedError as error:
                if first is not None:
                    raise first from error
                first = error

    async def _records(
        self, unit: model.Unit, content: Content, passed: int
    ) -> AsyncGenerator[Record, None]:
        """Yields the records after the first `passed`."""
        steps = self._steps
        store = StoreView(content, steps.wait)
        reader = await steps.run(self._make_reader)
        records = await steps.run(lambda: reader.read(NamedUnit.of(unit), store))
        try:
            # One at a time: whoever gave a record may change it in place to make the next.
            while (record := await steps.run(lambda: next(records, None))) is not None:
                if passed:
                    passed -= 1
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
    thread, so thread-local state of libraries stays usable.

    While it reads a unit, the user's code computes and waits for bytes in turn. The event loop fetches the
    bytes, as for all formats, with limits and retries. While the code computes, the loop waits, as it does
    for a transform, so that endless computing is noticed.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "guest")
        self._one_at_a_time = asyncio.Lock()
        self._changed = threading.Condition()  # guards what follows
        self._loop: asyncio.AbstractEventLoop | None = None  # of the step in hand
        self._waits: list[Future[Any]] = []
        self._idle: asyncio.Event | None = (
            None  # set when the loop that runs meanwhile is to look again
        )

    async def run(self, code: Callable[[], T]) -> T:
        """Returns the result of the code, or raises its error. Stops the loop until the code ends or calls
        `wait`, from any thread.

        If this is cancelled, each `wait` raises CancelledError until the code has ended: then the thread is
        free for the next step.
        """
        async with self._one_at_a_time:
            self._loop = asyncio.get_running_loop()
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
                step.exception()  # when the code has ended
                raise
            return step.result()

    def wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Returns the result of `work`, run by the loop. For threads of the user's code, while a step
        runs."""
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
