"""The last spans of all processes, for `cachecd trace`."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable

from cachecd_client.protocol import MAX_SPANS, Span

KEPT = 60.0  # seconds
_MOST = 20_000  # spans: 4 MB


class Timeline:
    """The spans of the last KEPT seconds, at most _MOST. Any thread may call `note` and `add`.

    `complete_since`: no span that ended later was dropped, by the monotonic clock.
    """

    def __init__(self) -> None:
        self._own = f"daemon {os.getpid()}"
        self._spans: deque[tuple[str, Span]] = deque()
        self._lock = threading.Lock()
        self.complete_since = 0.0

    def note(self, name: str, begin: float) -> None:
        """Adds a span of this process that ends now. `begin`: by the monotonic clock."""
        self.add(self._own, [(name, begin, time.monotonic() - begin)])

    def add(self, process: str, spans: Iterable[Span]) -> None:
        """Adds the spans that a process reported."""
        now = time.monotonic()
        with self._lock:
            self._spans.extend((process, span) for span in list(spans)[:MAX_SPANS])
            while len(self._spans) > _MOST:
                _, (_, begin, seconds) = self._spans.popleft()
                end = min(now, begin + seconds)  # a process may report any time
                self.complete_since = max(self.complete_since, end)

    def last(self, seconds: float) -> dict[str, list[Span]]:
        """Returns the spans that ended in the last `seconds`, by process."""
        since = time.monotonic() - min(seconds, KEPT)
        found: dict[str, list[Span]] = {self._own: []}
        with self._lock:
            spans = list(self._spans)
        for process, span in spans:
            if span[1] + span[2] >= since:
                found.setdefault(process, []).append(span)
        return found
