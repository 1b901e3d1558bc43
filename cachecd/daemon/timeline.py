"""The last spans of all processes, for `cachecd trace`."""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable

from cachecd_client.protocol import MAX_SPANS, Span

KEPT = 60.0  # seconds
_MOST = 20_000  # spans: 4 MB

#: Returns the spans that ended after a time of the monotonic clock, each with the name of its process.
Provider = Callable[[float], Iterable[tuple[str, Span]]]


class Timeline:
    """The spans of the last KEPT seconds, at most _MOST. Any thread may call `note` and `add`.

    `providers`: other sources of spans.
    """

    def __init__(self) -> None:
        self.providers: list[Provider] = []
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
        own = [(process, span) for process, span in list(self._spans) if span[1] + span[2] >= since]
        others = (provider(since) for provider in self.providers)
        for process, span in itertools.chain(own, *others):
            found.setdefault(process, []).append(span)
        return found
