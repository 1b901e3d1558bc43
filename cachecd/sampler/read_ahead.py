"""Fetches the bytes of later units while the present units are processed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from typing_extensions import Buffer

T = TypeVar("T")

# A request's size. A request costs a local S3 server 2 ms of CPU time and us half of that, whatever its
# length; the larger, the fewer there are, the smaller, the sooner the first records are there, and the
# less is fetched in vain where a shard ends.
PIECE = 8 << 20
_LEAST = 256 << 10  # the least size of a request, towards a shard's end
# With 64 MiB 16 lanes have requests of 2 MiB: 5 % less was ingested on two cores that the server shared.
WINDOW = 128 << 20

Span = tuple[int, int]
Fetch = Callable[[int, int, int], Awaitable[Buffer]]


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Returns the results of all. Raises the first failure unchanged, and cancels the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def in_pieces(
    fetch: Callable[[int, int], Coroutine[Any, Any, Buffer]], start: int, stop: int
) -> Buffer:
    """Returns bytes [start, stop), fetched by concurrent requests of PIECE bytes."""
    if stop - start <= PIECE:
        return await fetch(start, stop)
    begins = range(start, stop, PIECE)
    return b"".join(await together(fetch(at, min(at + PIECE, stop)) for at in begins))


class _Reading:
    """One span: the requests for it, in order. `taken` and `requested` count its bytes."""

    def __init__(self, index: int, span: Span) -> None:
        self.index = index
        self.begin, self.stop = span
        self.requests: deque[tuple[int, asyncio.Future[Buffer]]] = deque()  # not taken: size, bytes
        self.requested = 0
        self.taken = 0
        self.used = 0  # of what was taken, as far as is known
        self.noted = False  # somebody says how much
        self.whole = False  # all of it has been requested

    @property
    def buffered(self) -> int:
        """Bytes that were requested and not used up."""
        return self.requested - self.used


class ReadAhead:
    """The bytes of `spans`, fetched by several requests at a time. Up to `lanes` spans are read side by
    side. `add` appends a span.

    A span is [start, stop) of a unit's object, or None if no bytes of it are fetched ahead. `fetch(index,
    start, stop)` fetches a piece of a span. At most `connections` requests run at once. Bytes that were
    requested and not used yet stay below `window`, and below `wanted()`, the bytes that can still be used.
    The lanes share this bound equally. A request is for half of a lane's part, so that requests do not
    become as small as the pieces that were just used. The one piece that the caller waits for is always
    requested, whatever the bounds.
    """

    def __init__(
        self,
        spans: Sequence[Span | None],
        fetch: Fetch,
        connections: int,
        wanted: Callable[[], float],
        lanes: int = 1,
        window: int = WINDOW,
        piece: int = PIECE,
    ) -> None:
        self._spans = dict(enumerate(spans))  # that were not left
        self._end = len(spans)
        self._fetch = fetch
        self._connections = connections
        self._wanted = wanted
        self._lanes = lanes
        self._window = window
        self._piece = piece
        self._least = min(_LEAST, piece)
        self._open: dict[int, _Reading] = {}  # begun and not left
        self._coming: dict[int, _Reading] = {}  # not begun, but requested
        self._next = 0  # the first span that is neither
        self._buffered = 0
        self._waiting = 0  # requests that have not been taken
        self._running = 0
        self._closed = False
        self._used = 0

    @property
    def used(self) -> float:
        """About how many bytes of all spans have been used up."""
        unsure = (r.taken - r.used for r in self._open.values() if not r.noted)
        return self._used + sum(unsure) / 2

    def add(self, span: Span | None) -> int:
        """Appends a span; returns its index."""
        self._spans[self._end] = span
        self._end += 1
        return self._end - 1

    @property
    def buffered(self) -> int:
        """Bytes that were requested and have not been used up."""
        return self._buffered

    def chunks(self, index: int) -> AsyncIterator[Buffer]:
        """Yields the bytes of span `index` in order, in pieces; at least one piece.

        Spans must begin in ascending order. A span that is passed over is not fetched any more. Raises the
        errors of `fetch`.
        """
        while self._coming and (first := next(iter(self._coming))) < index:
            self._drop(self._coming.pop(first))
        if index in self._open:
            return _Chunks(self, index)
        reading = self._coming.pop(index, None) or self._begin(index)
        if reading is not None:
            self._open[index] = reading
        return _Chunks(self, index)

    async def take(self, index: int) -> Buffer | None:
        """Returns the next piece of span `index`, or None if the span has no more bytes or was left."""
        reading = self._open.get(index)
        if reading is None:
            return None
        self._use(reading, reading.taken)
        if not reading.requests and not reading.whole:
            self._ask(reading, self._size(reading, self._bound() / self._lanes))
        self._fill()
        if not reading.requests:
            return None
        size, request = reading.requests[0]
        data = await request
        reading.requests.popleft()
        self._waiting -= 1
        reading.taken += size
        return data

    def note(self, index: int, used: int) -> None:
        """Notes that this many bytes of span `index` were used up."""
        if (reading := self._open.get(index)) is not None:
            reading.noted = True
            self._use(reading, min(used, reading.taken))

    def lengthen(self, index: int, more: int) -> None:
        """Adds `more` bytes to the end of span `index`, while one of its pieces is being fetched."""
        reading = self._open.get(index) or self._coming.get(index)
        if reading is not None and more:
            reading.stop += more
            reading.whole = False

    def leave(self, index: int) -> None:
        """Stops fetching span `index`. Idempotent."""
        self._spans.pop(index, None)
        if (reading := self._open.pop(index, None)) is not None:
            self._use(reading, reading.taken)
        else:
            reading = self._coming.pop(index, None)
        if reading is not None:
            self._drop(reading)

    def close(self) -> None:
        """Stops all requests. Idempotent."""
        self._closed = True
        for reading in (*self._open.values(), *self._coming.values()):
            self._drop(reading)
        self._open, self._coming = {}, {}

    def _begin(self, index: int) -> _Reading | None:
        self._next = max(self._next, index + 1)
        span = self._spans.get(index)
        return None if span is None else _Reading(index, span)

    def _drop(self, reading: _Reading) -> None:
        for _, request in reading.requests:
            request.cancel()
        self._waiting -= len(reading.requests)
        self._buffered -= reading.buffered
        reading.requests.clear()
        reading.whole = True

    def _use(self, reading: _Reading, used: int) -> None:
        more = max(used - reading.used, 0)
        reading.used += more
        self._buffered -= more
        self._used += more

    def _fill(self) -> None:
        """Requests as many pieces as the bounds allow."""
        while (
            not self._closed
            and self._running < self._connections
            # Pieces that wait behind a slow one cost no connection; but there are bounds to it.
            and self._waiting < 4 * self._connections
        ):
            bound = self._bound()
            part = bound / self._lanes
            reading = self._most_needed(part)
            if reading is None:
                return
            size = self._size(reading, part)
            if self._buffered + size > bound:
                return
            self._ask(reading, size)

    def _bound(self) -> float:
        """How many bytes may be held."""
        return min(self._wanted(), self._window)

    def _most_needed(self, part: float) -> _Reading | None:
        """Returns the span to request next. First the open span that holds the least, if one more request
        stays within a lane's part; then the next span that is not open yet; then the open span again."""
        unfinished = (r for r in self._open.values() if not r.whole)
        low = min(unfinished, key=lambda r: r.buffered, default=None)
        if low is not None and low.buffered + self._size(low, part) <= part:
            return low
        coming = next((r for r in self._coming.values() if not r.whole), None)
        while coming is None and self._next < self._end:
            if (coming := self._begin(self._next)) is not None:
                self._coming[coming.index] = coming
        return coming or low

    def _size(self, reading: _Reading, part: float) -> int:
        """Returns the bytes of the next request for a span: half of a lane's part, and no remainder that
        would be a small request by itself."""
        size = min(self._piece, max(int(part / 2), self._least))
        # Up to a round place in the object: for 4 MiB at an odd place a server that keeps chunks of that
        # size takes 1.97 s of CPU time a GB, at multiples of it 1.16.
        begin = reading.begin + reading.requested
        unit = max(self._least, 1 << (size.bit_length() - 1))
        size = (begin + size + unit // 2) // unit * unit - begin
        left = reading.stop - begin
        return left if left <= max(size, min(size + self._least, self._piece)) else size

    def _ask(self, reading: _Reading, size: int) -> None:
        start = reading.begin + reading.requested
        task = asyncio.ensure_future(self._fetch(reading.index, start, start + size))
        task.add_done_callback(self._done)
        reading.requests.append((size, task))
        reading.requested += size
        reading.whole = start + size >= reading.stop
        self._buffered += size
        self._waiting += 1
        self._running += 1

    def _done(self, task: asyncio.Future[Buffer]) -> None:
        self._running -= 1
        if not task.cancelled():
            task.exception()  # heard, even if nobody waits for this piece any more
        self._fill()


class _Chunks(AsyncIterator[Buffer]):
    def __init__(self, ahead: ReadAhead, index: int) -> None:
        self._ahead = ahead
        self._index = index

    async def __anext__(self) -> Buffer:
        data = await self._ahead.take(self._index)
        if data is None:
            raise StopAsyncIteration
        return data
