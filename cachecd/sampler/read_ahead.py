"""Fetches the bytes of later units while a stream processes the present units."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from typing_extensions import Buffer

from cachecd.sampler.meter import METER

T = TypeVar("T")

# The size of a request. Each request takes 2 ms of CPU time in a local S3 server, and half of that in the
# sampler, whatever its length. With smaller requests, the first records arrive earlier, and fewer
# fetched bytes are dropped at the end of a shard.
PIECE = 8 << 20
_LEAST = 256 << 10  # the smallest request, near the end of a shard
# With 64 MiB, the requests of 16 lanes have 2 MiB. Measured on two cores that the server shared: 5 % fewer
# bytes were ingested.
WINDOW = 128 << 20

Span = tuple[int, int]
Fetch = Callable[[int, int, int], Awaitable[Buffer]]


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Returns the results of all coroutines. Raises the first failure unchanged, and cancels the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
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
    """The requests for one span, in order."""

    def __init__(self, index: int, span: Span) -> None:
        self.index = index
        self.begin, self.stop = span
        # Requests whose bytes were not taken: the size, and the bytes.
        self.requests: deque[tuple[int, asyncio.Future[Buffer]]] = deque()
        self.requested = 0  # bytes
        self.taken = 0
        self.used = 0  # taken bytes that were certainly used up
        self.is_noted = False  # whether `note` reports the used bytes
        self.whole = False  # whether all bytes were requested

    @property
    def buffered(self) -> int:
        """Requested bytes that were not used up."""
        return self.requested - self.used


class ReadAhead:
    """Fetches the bytes of `spans` with several concurrent requests. The caller reads up to `lanes` spans
    at the same time. `add` appends a span.

    A span is the range [start, stop) of a unit's object, or None if nothing is fetched ahead. `fetch(index,
    start, stop)` fetches a piece of a span. At most `connections` requests run at once. Requested bytes
    that are not used yet stay below `window`, and below `wanted()`: the bytes that can still be used. The
    lanes share this bound equally. A request is for half of a lane's share, so that requests do not become
    as small as the pieces that were just used. If the caller waits for a piece, it is always requested,
    whatever the bounds.
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
        self._spans = dict(enumerate(spans))  # spans that were not left
        self._end = len(spans)
        self._fetch = fetch
        self._connections = connections
        self._wanted = wanted
        self._lanes = lanes
        self._window = window
        self._piece = piece
        self._least = min(_LEAST, piece)
        self._open: dict[int, _Reading] = {}  # spans that `chunks` began and nobody left
        self._early: dict[int, _Reading] = {}  # later spans, which `chunks` has not begun
        self._next = 0  # the first span after them
        self._buffered = 0
        self._waiting = 0  # requests whose bytes were not taken
        self._running = 0
        self._closed = False
        self._used = 0

    @property
    def used(self) -> float:
        """An estimate of the bytes of all spans that were used up."""
        unsure = (r.taken - r.used for r in self._open.values() if not r.is_noted)
        return self._used + sum(unsure) / 2

    def add(self, span: Span | None) -> int:
        """Appends a span; returns its index."""
        self._spans[self._end] = span
        self._end += 1
        return self._end - 1

    @property
    def buffered(self) -> int:
        """Requested bytes of all spans that were not used up."""
        return self._buffered

    def chunks(self, index: int) -> AsyncIterator[Buffer]:
        """Yields the bytes of span `index` in order, in pieces; at least one piece.

        Call it in ascending order of the spans. A span that the caller passes over is no longer fetched.
        Raises the errors of `fetch`.
        """
        while self._early and (first := next(iter(self._early))) < index:
            self._drop(self._early.pop(first))
        if index in self._open:
            return _Chunks(self, index)
        reading = self._early.pop(index, None) or self._begin(index)
        if reading is not None:
            self._open[index] = reading
        return _Chunks(self, index)

    async def take(self, index: int) -> Buffer | None:
        """Returns the next piece of span `index`, or None if the span has no more bytes or was left."""
        before = METER.enter("") if METER.on else ""  # requests are no part of decoding
        try:
            reading = self._open.get(index)
            if reading is None:
                return None
            self._use(reading, reading.taken)
            if not reading.requests and not reading.whole:
                self._request(reading, self._size(reading, self._bound() / self._lanes))
            self._request_pieces()
            if not reading.requests:
                return None
            size, request = reading.requests[0]
            data = request.result() if request.done() else await METER.wait_for(request)
            reading.requests.popleft()
            self._waiting -= 1
            reading.taken += size
            return data
        finally:
            if METER.on:
                METER.enter(before)

    def note(self, index: int, used: int) -> None:
        """Notes that this many bytes of span `index` were used up."""
        if (reading := self._open.get(index)) is not None:
            reading.is_noted = True
            self._use(reading, min(used, reading.taken))

    def lengthen(self, index: int, more: int) -> None:
        """Adds `more` bytes to the end of span `index`, while one of its pieces is being fetched."""
        reading = self._open.get(index) or self._early.get(index)
        if reading is not None and more:
            reading.stop += more
            reading.whole = False

    def leave(self, index: int) -> None:
        """Stops fetching span `index`. Idempotent."""
        self._spans.pop(index, None)
        if (reading := self._open.pop(index, None)) is not None:
            self._use(reading, reading.taken)
        else:
            reading = self._early.pop(index, None)
        if reading is not None:
            self._drop(reading)

    def close(self) -> None:
        """Stops all requests. Idempotent."""
        self._closed = True
        for reading in (*self._open.values(), *self._early.values()):
            self._drop(reading)
        self._open, self._early = {}, {}

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

    def _request_pieces(self) -> None:
        """Requests as many pieces as the bounds allow."""
        while (
            not self._closed
            and self._running < self._connections
            # Pieces that wait behind a slow piece use no connection. This bounds their number.
            and self._waiting < 4 * self._connections
        ):
            bound = self._bound()
            share = bound / self._lanes
            reading = self._most_needed(share)
            if reading is None:
                return
            size = self._size(reading, share)
            if self._buffered + size > bound:
                return
            self._request(reading, size)

    def _bound(self) -> float:
        """Returns how many bytes may be buffered."""
        return min(self._wanted(), self._window)

    def _most_needed(self, share: float) -> _Reading | None:
        """Returns the span for the next request. The open span with the fewest buffered bytes has priority,
        if one more request stays within a lane's share. Otherwise it is the next span that is not open. If
        there is none, it is the same open span."""
        unfinished = (r for r in self._open.values() if not r.whole)
        low = min(unfinished, key=lambda r: r.buffered, default=None)
        if low is not None and low.buffered + self._size(low, share) <= share:
            return low
        early = next((r for r in self._early.values() if not r.whole), None)
        while early is None and self._next < self._end:
            if (early := self._begin(self._next)) is not None:
                self._early[early.index] = early
        return early or low

    def _size(self, reading: _Reading, share: float) -> int:
        """Returns the size of the next request for a span: half of a lane's share, or the whole rest, so
        that no small request remains."""
        size = min(self._piece, max(int(share / 2), self._least))
        # A request ends at a round offset. A server that keeps chunks of 4 MiB takes 1.97 s of CPU time per
        # GB for requests of 4 MiB at odd offsets, and 1.16 s at multiples of 4 MiB.
        begin = reading.begin + reading.requested
        unit = max(self._least, 1 << (size.bit_length() - 1))
        size = (begin + size + unit // 2) // unit * unit - begin
        left = reading.stop - begin
        return left if left <= max(size, min(size + self._least, self._piece)) else size

    def _request(self, reading: _Reading, size: int) -> None:
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
            task.exception()  # marks it as retrieved, because perhaps nobody waits for this piece
        self._request_pieces()


class _Chunks(AsyncIterator[Buffer]):
    def __init__(self, ahead: ReadAhead, index: int) -> None:
        self._ahead = ahead
        self._index = index

    async def __anext__(self) -> Buffer:
        data = await self._ahead.take(self._index)
        if data is None:
            raise StopAsyncIteration
        return data
