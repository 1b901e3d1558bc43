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

    def __init__(self, datasets: dict[str, Any]) -> None:
        self.heard: Callable[[Any], None] = lambda message: None
        self.worker = Worker(Setup(datasets, 8, None), self._say, retry=RETRY)
        self._loop = asyncio.get_running_loop()
        self._serving = asyncio.ensure_future(self.worker.serve())

    def send(self, message: OfStreams) -> None:
        self.worker.receive(message)

    async def end(self) -> None:
        self._serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._serving

    def _say(self, message: Any) -> None:
        self._loop.call_soon(lambda: self.heard(message))
