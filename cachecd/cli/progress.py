"""The progress of a command on stderr: rate and time left."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from cachecd.quantities import printable, progress_text

_FIRST = 2.0  # seconds: what takes less needs no progress
_ON_TERMINAL, _ELSEWHERE = 0.5, 60.0  # seconds between two lines
_RATED = 10.0  # seconds over which the rate is computed
_CLEAR = "\r\x1b[K"


class Progress:
    """A context manager that prints the progress of its body. Nothing is printed in the first two seconds.
    A terminal then shows one line, which changes; otherwise a line is printed each minute.

    The body calls `note`. A thread prints, so that progress shows also while the body blocks.
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._clock = stream or sys.stderr, clock
        self._is_terminal = self._stream.isatty()
        self._every = _ON_TERMINAL if self._is_terminal else _ELSEWHERE
        self._begin = self._next = clock()
        self._next += _FIRST
        self._text, self._done, self._total, self._unit = "", 0.0, 0.0, ""
        self._samples: deque[tuple[float, float]] = deque(maxlen=1000)  # time and `done`
        self._printed = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def note(self, text: str, done: float = 0, total: float = 0, unit: str = "bytes") -> None:
        """Sets the progress. `done` of `total` units, both 0 if they are unknown."""
        if done < self._done:  # another phase
            self._samples.clear()
        self._text, self._done, self._total, self._unit = text, done, total, unit
        now = self._clock()
        if not self._samples or now >= self._samples[-1][0] + _ON_TERMINAL:
            self._samples.append((now, done))

    def line(self) -> str:
        """Returns the progress as one line, for example ``train: 1.0 GiB of 4.0 GiB (25 %), 95 MB/s,
        about 32 s left``."""
        now = self._clock()
        while len(self._samples) > 1 and self._samples[0][0] < now - _RATED:
            self._samples.popleft()
        then, before = self._samples[0] if self._samples else (now, 0.0)
        rate = (self._done - before) / (now - then) if now > then else 0.0
        figures = progress_text(self._done, self._total, rate, self._unit)
        return ", ".join(filter(None, (self._text, figures or f"{now - self._begin:.0f} s")))

    def print_if_due(self) -> bool:
        """Prints the line if it is time. Returns whether it printed."""
        if not self._text or self._clock() < self._next:
            return False
        self._next, self._printed = self._clock() + self._every, True
        line = printable(self.line())
        if self._is_terminal:
            columns = shutil.get_terminal_size().columns
            self._stream.write(f"{_CLEAR}{line[: columns - 1]}")
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()
        return True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._is_terminal and self._printed:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def _run(self) -> None:
        while not self._ended.wait(_ON_TERMINAL):
            self.print_if_due()
