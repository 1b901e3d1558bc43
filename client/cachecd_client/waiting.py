"""Waiting for a lease: how far the cache is, said to people at a bearable rate."""

from __future__ import annotations

import logging
import time

from cachecd_client.errors import AcquireTimeoutError
from cachecd_client.protocol import Waiting

log = logging.getLogger("cachecd")

_FIRST_PAUSE, _LAST_PAUSE = 0.02, 0.5  # seconds between two requests
_FIRST_LINE, _NEXT_LINES = 2.0, 10.0  # seconds before the first line in the log, and between lines


class Wait:
    """One wait of one request: its deadline, its pauses of `longest` seconds, its lines in the log."""

    def __init__(self, dataset: str, timeout: float | None, longest: float = _LAST_PAUSE) -> None:
        self._dataset = dataset
        self._timeout = timeout
        now = time.monotonic()
        self._deadline = None if timeout is None else now + timeout
        self._next_line = now + _FIRST_LINE
        self._pause = _FIRST_PAUSE
        self._longest = longest

    def pause(self, waiting: Waiting) -> None:
        """Sleeps until the next request is due; AcquireTimeoutError when the time is up."""
        now = time.monotonic()
        pause = self._pause
        if self._deadline is not None:
            if now >= self._deadline:
                raise AcquireTimeoutError(
                    f"no lease within {self._timeout:.3g} s: {describe(self._dataset, waiting)}"
                )
            pause = min(pause, self._deadline - now)
        if now >= self._next_line:
            # A warning, because a trainer that set up no logging sees nothing less, and one that
            # stands still should say why.
            log.warning("%s", describe(self._dataset, waiting))
            self._next_line = now + _NEXT_LINES
        time.sleep(pause)
        self._pause = min(2 * self._pause, self._longest)


def describe(dataset: str, waiting: Waiting) -> str:
    """For example ``train: 312 MiB of 1 GiB (30 %), 95 MB/s, ready in about 8 s``."""
    have, want, rate = waiting.have_bytes, waiting.want_bytes, waiting.bytes_per_second
    if want <= 0:  # no figures: the daemon is starting, or its disk has failed
        return f"{dataset}: {waiting.reason or 'not ready yet'}"
    parts = [f"{dataset}: {_size(have)} of {_size(want)} ({100 * have // want} %)"]
    if rate > 0:
        parts.append(f"{_rate(rate)}, ready in about {_duration(max(want - have, 0) / rate)}")
    else:
        parts.append("nothing is arriving")
    return ", ".join(parts) + (f" ({waiting.reason})" if waiting.reason else "")


def _size(count: int) -> str:
    """Binary units, as the configuration writes sizes."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def _rate(bytes_per_second: float) -> str:
    """Decimal units, as links are sold and as the configuration writes rates."""
    value, unit = bytes_per_second, "B/s"
    for unit in ("B/s", "kB/s", "MB/s", "GB/s"):
        if value < 1000 or unit == "GB/s":
            break
        value /= 1000
    return f"{value:.3g} {unit}"


def _duration(seconds: float) -> str:
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
