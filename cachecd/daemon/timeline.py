"""The last spans of all processes, for `cachecd trace`."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable

from cachecd_client.protocol import MAX_SPANS, Span

KEPT = 60.0  # seconds
_MOST = 20_000  # spans: 4 MB


class Timeline:
    """The spans of the last KEPT seconds, at most _MOST. Any thread may call `note` and `add`."""

    def __init__(self) -> None:
        self._own = f"daemon {os.getpid()}"
        self._spans: deque[tuple[str, Span]] = deque(maxlen=_MOST)

    def note(self, name: str, begin: float) -> None:
        """Adds a span of this process that ends now. `begin`: by the monotonic clock."""
        self._spans.append((self._own, (name, begin, time.monotonic() - begin)))

    def add(self, process: str, spans: Iterable[Span]) -> None:
        """Adds the spans that another process reported."""
        self._spans.extend((process, span) for span in list(spans)[:MAX_SPANS])

    def last(self, seconds: float) -> dict[str, list[Span]]:
        """Returns the spans that ended in the last `seconds`, by process."""
        since = time.monotonic() - min(seconds, KEPT)
        found: dict[str, list[Span]] = {self._own: []}
        for process, span in list(self._spans):
            if span[1] + span[2] >= since:
                found.setdefault(process, []).append(span)
        return found
