"""Limits the number of requests in flight to a store, and delays requests if the store throttles."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from types import TracebackType

from cachecd.stores.retry import Pace


class Gate:
    """Admits requests in order of arrival: use `async with gate:` around each request. For one event
    loop."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._inside = 0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        if not self._waiting and self._may_enter():  # nearly always
            self._inside += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._open()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # admitted, but cancelled
                self._leave()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self._inside -= 1
        self._open()

    def _open(self) -> None:
        """Admits as many requests as the pace allows, and schedules itself for the next request."""
        while self._waiting and self._may_enter():
            turn = self._waiting.popleft()
            if not turn.done():
                self._inside += 1
                turn.set_result(None)
        wait = self._pace.not_before - time.monotonic()
        if self._waiting and wait > 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait, self._reopen)

    def _may_enter(self) -> bool:
        return self._inside < self._pace.allowed and self._pace.not_before <= time.monotonic()

    def _reopen(self) -> None:
        self._timer = None
        self._open()
