"""An executor with one worker in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cachecd.sampler.messages import FromStream, Grant, OfStreams, Setup
from cachecd.sampler.worker import Worker
from tests.sampler.streams import RETRY


class InProcess:
    """Runs streams in a worker. The event loop gets the messages of the worker in order."""

    def __init__(self, datasets: dict[str, Any], path_of: Callable[[Grant], Path]) -> None:
        self.report: Callable[[Any], None] = lambda message: None
        self._path_of = path_of
        self.worker = Worker(Setup(datasets, 8, None), self._send, retry=RETRY)
        self._loop = asyncio.get_running_loop()
        self._serving = asyncio.ensure_future(self.worker.serve())

    async def start(self, report: Callable[[FromStream], None]) -> None:
        self.report = report

    def send(self, message: OfStreams) -> None:
        if isinstance(message, Grant):
            message = replace(message, path=str(self._path_of(message)))
        self.worker.receive(message)

    async def close(self, grace: float) -> None:
        self._serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._serving

    def _send(self, message: Any) -> None:
        self._loop.call_soon(lambda: self.report(message))
