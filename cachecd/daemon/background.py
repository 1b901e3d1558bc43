"""Tasks of the event loop that nobody awaits. They end with the daemon at the latest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Background:
    """Holds every task that nobody awaits."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self,
        work: Coroutine[Any, Any, None],
        failed: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """Starts work. If the work fails, `failed` is called with the error, except an InterruptedError."""

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, InterruptedError):
                failed(error)

        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(end)

    async def close(self) -> None:
        """Cancels all tasks, and waits until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
