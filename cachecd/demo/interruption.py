"""Ctrl-C, SIGTERM or a closed terminal may end the demo at any time: all cleanups still run."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_RISING = 1.0  # seconds until an exception has left `heeded`
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Turns these signals into exceptions, but never during a cleanup. For the main thread.

        with Interruption() as interruption, ExitStack() as cleanups, interruption.heeded():

    Within `heeded` a signal raises KeyboardInterrupt (Ctrl-C) or SystemExit. Then the cleanups run and the
    process ends. Further signals have no effect, so that no cleanup is interrupted. If the first signal
    arrives during a cleanup, it is raised after the cleanup.

    A second signal has no effect within a second of the first signal. During this time, the first
    exception may still pass through generators, where a second exception would only be printed. Later
    signals are raised.
    """

    def __init__(self) -> None:
        self._heeding = False
        self._received = 0
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            # nohup ignores SIGHUP, and it must stay ignored.
            if (before := signal.getsignal(number)) != signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._received:
            for number, handler in self._before.items():
                signal.signal(number, handler)
        elif error is None:
            self.check()

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Within this context signals raise."""
        self._heeding = True
        try:
            self.check()
            yield
        finally:
            self._heeding = False

    def check(self) -> None:
        """Raises if a signal arrived but its exception was lost, as in a weak reference's callback."""
        self._since = time.monotonic()
        if self._received == signal.SIGINT:
            raise KeyboardInterrupt
        if self._received:
            raise SystemExit(128 + self._received)

    def _receive(self, number: int, _: FrameType | None) -> None:
        rising = self._received and time.monotonic() < self._since + _RISING
        self._received = self._received or number
        if self._heeding and not rising:
            self.check()
