"""An executor with one worker in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from cachecd.sampler.messages import OfStreams, Setup
from cachecd.sampler.worker import Worker
from tests.sampler.streams import RETRY


class InProcess:
    """Carries streams by a worker; what it says is heard on the event loop, in order."""

    def __init__(self, datasets: dict[str, Any], connections: int = 8) -> None:
        self.heard: Callable[[Any], None] = lambda message: None
        self.worker = Worker(Setup(datasets, connections, None), self._say, retry=RETRY)
        self._loop = asyncio.get_running_loop()
        self._tasks = {asyncio.ensure_future(self.worker.serve())}

    def send(self, message: OfStreams) -> None:
        self.worker.receive(message)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _say(self, message: Any) -> None:
        self._loop.call_soon(lambda: self.heard(message))
