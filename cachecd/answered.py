"""The replies to the latest requests, so that a request that is sent again has no second effect."""

from __future__ import annotations

from collections import OrderedDict

from cachecd_client.protocol import MAX_MESSAGE_BYTES, Reply

_REPLIES = 8192  # of 100 jobs of 8 ranks that wait, asking twice a second each: 5 s
_BYTES = 4 * MAX_MESSAGE_BYTES


class Answered:
    """Replies by request; the oldest is forgotten when there are too many.

    A request is all its bytes: two clients that chose the same id asked two questions.
    """

    def __init__(self) -> None:
        self._replies: OrderedDict[bytes, Reply] = OrderedDict()
        self._bytes = 0

    def find(self, request: bytes) -> Reply | None:
        """The reply that this request got; None if it was never answered, or too long ago."""
        return self._replies.get(request)

    def keep(self, request: bytes, reply: Reply) -> None:
        """Notes what a request was answered, for the first time."""
        self._replies[request] = reply
        self._bytes += len(request)
        while len(self._replies) > _REPLIES or self._bytes > _BYTES:
            forgotten, _ = self._replies.popitem(last=False)
            self._bytes -= len(forgotten)
