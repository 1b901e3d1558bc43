"""Ctrl-C, SIGTERM and a closed terminal end the demo through its cleanups, whatever it is doing."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def cleanly_interrupted() -> Iterator[None]:
    """Turns the first of these signals within into KeyboardInterrupt (Ctrl-C) or SystemExit.

    Later ones have no effect, so that nobody cuts short what the first one has set going; it ends
    by itself. Only for the main thread.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def end(number: int, _: FrameType | None) -> NoReturn:
        for each in _SIGNALS:
            # Not SIG_IGN, which a child process would inherit.
            signal.signal(each, lambda *_: None)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    try:
        for number in _SIGNALS:
            # Under nohup SIGHUP is ignored, and is to stay so.
            if before[number] != signal.SIG_IGN:
                signal.signal(number, end)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
