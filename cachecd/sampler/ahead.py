"""Fetches what will be needed next while the present unit is being worked on."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from typing_extensions import Buffer

# A request's size. Of 64 MiB objects on a local S3 server, 1 to 16 MiB came equally fast within the
# noise (310 to 480 MB/s a process, on two busy cores); the smaller, the less is fetched in vain where a
# shard ends (4 MiB: 2 % of a shard of 64 MiB), the larger, the fewer requests are paid for.
PIECE = 4 << 20
WINDOW = 64 << 20

Span = tuple[int, int]
Fetch = Callable[[int, int, int], Awaitable[Buffer]]


async def in_pieces(
    fetch: Callable[[int, int], Awaitable[Buffer]], start: int, stop: int
) -> Buffer:
    """Bytes [start, stop), by as many requests at a time as it takes of PIECE each."""
    tasks = [
        asyncio.ensure_future(fetch(at, min(at + PIECE, stop))) for at in range(start, stop, PIECE)
    ]
    try:
        pieces = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@dataclass(slots=True, eq=False)
class _Request:
    index: int
    size: int
    task: asyncio.Future[Buffer]


class Ahead:
    """The bytes of `spans` in their order, several requests at a time.

    A span is [start, stop) of a unit's object, None if nothing of it is to be fetched ahead.
    `fetch(index, start, stop)` gets a piece of one. At most `connections` requests run at once; what
    has been asked for and not been taken yet stays below WINDOW bytes, and below what `wanted()` says
    can still be used, in bytes to be fetched. The one piece that the caller waits for is always asked
    for, whatever the bounds.
    """

    def __init__(
        self,
        spans: Sequence[Span | None],
        fetch: Fetch,
        connections: int,
        wanted: Callable[[], float],
        window: int = WINDOW,
        piece: int = PIECE,
    ) -> None:
        self._spans = spans
        self._fetch = fetch
        self._connections = connections
        self._wanted = wanted
        self._window = window
        self._plan = self._pieces(piece)
        self._next = next(self._plan, None)
        self._asked: deque[_Request] = deque()
        self._held = 0  # bytes asked for and not taken
        self.taken = 0
        """Bytes taken so far."""
        self._running = 0

    def _pieces(self, size: int) -> Iterator[tuple[int, int, int]]:
        for index, span in enumerate(self._spans):
            if span is not None:
                begin, end = span
                yield index, begin, min(begin + size, end)
                for start in range(begin + size, end, size):
                    yield index, start, min(start + size, end)

    def chunks(self, index: int) -> AsyncIterator[Buffer]:
        """The bytes of span `index`, in order, in pieces; at least one piece.

        Spans are asked for in ascending order; some may be left out, and one may be left before its
        end: then nothing more of it is fetched. Iterating raises what `fetch` raised.
        """
        self._skip_to(index)
        return _Chunks(self, index)

    async def take(self, index: int) -> Buffer | None:
        """The next piece of span `index`, or None if it has no more."""
        if not self._asked and self._next is not None and self._next[0] == index:
            self._ask()
        self._fill()
        if not self._asked or self._asked[0].index != index:
            return None
        request = self._asked[0]
        data = await request.task
        self._asked.popleft()
        self._held -= request.size
        self.taken += request.size
        return data

    def close(self) -> None:
        """Stops all requests. Idempotent."""
        self._next = None
        self._skip_to(len(self._spans))

    def _skip_to(self, index: int) -> None:
        while self._asked and self._asked[0].index < index:
            request = self._asked.popleft()
            self._held -= request.size
            request.task.cancel()
        while self._next is not None and self._next[0] < index:
            self._next = next(self._plan, None)

    def _fill(self) -> None:
        while (
            self._next is not None
            and self._running < self._connections
            # Pieces that wait behind a slow one cost no connection; but there are bounds to it.
            and len(self._asked) < 4 * self._connections
        ):
            _, start, stop = self._next
            held = self._held + stop - start
            if held > self._window or held > self._wanted():
                return
            self._ask()

    def _ask(self) -> None:
        assert self._next is not None
        index, start, stop = self._next
        self._next = next(self._plan, None)
        task = asyncio.ensure_future(self._fetch(index, start, stop))
        task.add_done_callback(self._done)
        self._asked.append(_Request(index, stop - start, task))
        self._held += stop - start
        self._running += 1

    def _done(self, task: asyncio.Future[Buffer]) -> None:
        self._running -= 1
        if not task.cancelled():
            task.exception()  # heard, even if nobody waits for this piece any more
        self._fill()


class _Chunks(AsyncIterator[Buffer]):
    def __init__(self, ahead: Ahead, index: int) -> None:
        self._ahead = ahead
        self._index = index

    async def __anext__(self) -> Buffer:
        data = await self._ahead.take(self._index)
        if data is None:
            raise StopAsyncIteration
        return data


class Throttle:
    """A token bucket: on average at most `rate` bytes a second, in the order in which they are asked
    for. A rate of None lets everything through.
    """

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._free_at = 0.0  # when all that has been let through so far will have been paid for

    async def take(self, amount: int) -> None:
        """Waits until `amount` more bytes may be fetched."""
        if self._rate is None:
            return
        now = time.monotonic()
        begins = max(now, self._free_at)
        self._free_at = begins + amount / self._rate
        if begins > now:
            await asyncio.sleep(begins - now)
