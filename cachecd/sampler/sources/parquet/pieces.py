"""Column chunks as a decoder in a thread reads them: fetched ahead, several requests at a time.

A row group's columns lie one behind the other, and its rows need them all. So the pieces are fetched not
in the order in which they lie, but in that of the rows: first the beginnings of all columns. What is held
at a time is bounded, however large the row group is.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence

from typing_extensions import Buffer

from cachecd.sampler.ahead import PIECE

# Asked for or held ahead of what is being read: enough for four requests at a time. Where a shard ends
# within a row group, it has been fetched in vain: so it is no more than has been read, but for the first
# two requests.
WINDOW = 16 << 20
_GAP = 128 << 10  # what lies between two column chunks is fetched too, if a request would cost more

Span = tuple[int, int]


class ClosedError(OSError):
    """Nobody reads these pieces any more."""


class Pieces:
    """The bytes of `chunks`, the spans of the column chunks of one row group after the other.

    `read(start, stop)` of a thread gives them; each byte once, as a rule: a piece that was read to its end
    is given up, and fetched again if it is read again. For the event loop in which it is made.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Span]],
        fetch: Callable[[int, int], Awaitable[Buffer]],
        window: int = WINDOW,
        piece: int = PIECE,
    ) -> None:
        self._fetch = fetch
        self._window = window
        self._allowed = min(2 * piece, window)
        self._loop = asyncio.get_running_loop()
        self._spans: list[Span] = []
        self._left: list[int] = []  # of each piece, bytes that nobody has read yet
        order: list[tuple[int, float, int]] = []
        for number, chunks in enumerate(groups):
            places = self._cut(sorted(chunks), piece)
            order += [(number, place, index) for index, place in places.items()]
        self._by_start = sorted(range(len(self._spans)), key=lambda i: self._spans[i])
        self._starts = [self._spans[i][0] for i in self._by_start]
        self._order = [index for _, _, index in sorted(order)]
        self._next = 0  # of the order
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._here: dict[int, memoryview] = {}
        self._held = 0
        self._closed = False
        self.failure: Exception | None = None
        """What a fetch has raised."""

    def _cut(self, chunks: list[Span], piece: int) -> dict[int, float]:
        """Cuts what the chunks cover into pieces: for each, the place in the rows where it is needed."""
        places: dict[int, float] = {}
        first = len(self._spans)
        covered: list[list[int]] = []
        for start, stop in chunks:
            if covered and start <= covered[-1][1] + _GAP:
                covered[-1][1] = max(covered[-1][1], stop)
            else:
                covered.append([start, stop])
        for start, stop in covered:
            self._spans += [(at, min(at + piece, stop)) for at in range(start, stop, piece)]
        self._left += [0] * (len(self._spans) - first)
        index = first
        for start, stop in chunks:
            while index < len(self._spans) and self._spans[index][1] <= start:
                index += 1
            for i in range(index, len(self._spans)):
                begin, end = max(start, self._spans[i][0]), min(stop, self._spans[i][1])
                if begin >= end:
                    break
                self._left[i] += end - begin
                place = (begin - start) / (stop - start)
                places[i] = min(place, places.get(i, 1.0))
        return places

    def start(self) -> None:
        """Begins to fetch."""
        self._fill()

    def close(self) -> None:
        """Stops all requests; reads that wait raise. Idempotent."""
        self._closed = True
        for task in self._tasks.values():
            task.cancel()
        self._here.clear()

    # --- the decoder's thread

    def read(self, start: int, stop: int) -> Buffer:
        """Bytes [start, stop), up to the first that lies outside of all chunks."""
        index = self._at(start)
        if index is None:
            return b""
        if stop <= self._spans[index][1]:
            return self._take(index, start, stop)
        # A page of many pieces, each given up as soon as it is copied. All of it lies in the object.
        whole = bytearray(self._covered(start, stop) - start)
        done = 0
        while done < len(whole):
            index = self._at(start + done)
            assert index is not None
            upto = min(start + len(whole), self._spans[index][1])
            whole[done : upto - start] = self._take(index, start + done, upto)
            done = upto - start
        return whole

    def _at(self, place: int) -> int | None:
        """The piece in which a byte lies."""
        found = bisect_right(self._starts, place) - 1
        if found < 0 or place >= self._spans[self._by_start[found]][1]:
            return None
        return self._by_start[found]

    def _covered(self, start: int, stop: int) -> int:
        while start < stop and (index := self._at(start)) is not None:
            start = min(stop, self._spans[index][1])
        return start

    def _take(self, index: int, start: int, stop: int) -> memoryview:
        data = self._here.get(index)
        if data is None:
            data = asyncio.run_coroutine_threadsafe(self._get(index), self._loop).result()
        self._left[index] -= stop - start
        if self._left[index] <= 0:
            self._loop.call_soon_threadsafe(self._give_up, index)
        begin = self._spans[index][0]
        return data[start - begin : stop - begin]

    # --- the event loop

    async def _get(self, index: int) -> memoryview:
        if self._closed:
            raise ClosedError("closed")
        if index not in self._tasks:
            self._ask(index)
        await asyncio.wait((self._tasks[index],))
        if self._closed or index not in self._here:
            raise ClosedError(f"not read: {self.failure or 'closed'}")
        return self._here[index]

    def _fill(self) -> None:
        while self._next < len(self._order) and not self._closed:
            index = self._order[self._next]
            if index not in self._tasks:
                start, stop = self._spans[index]
                if self._held and self._held + stop - start > self._allowed:
                    return
                self._ask(index)
            self._next += 1

    def _ask(self, index: int) -> None:
        start, stop = self._spans[index]
        self._held += stop - start
        self._tasks[index] = self._loop.create_task(self._bring(index))

    async def _bring(self, index: int) -> None:
        try:
            self._here[index] = memoryview(await self._fetch(*self._spans[index])).cast("B")
        except Exception as error:  # told to whoever reads it, if anybody does
            self.failure = self.failure or error

    def _give_up(self, index: int) -> None:
        if self._here.pop(index, None) is not None:
            start, stop = self._spans[index]
            self._held -= stop - start
            self._allowed = min(self._window, self._allowed + stop - start)
            del self._tasks[index]
            self._fill()


class PiecesFile:
    """The file that pyarrow sees: `size` bytes long, of which only the chunks of `pieces` can be read."""

    closed = False

    def __init__(self, pieces: Pieces, size: int) -> None:
        self._pieces = pieces
        self._size = size
        self._at = 0

    def read(self, length: int = -1) -> Buffer:
        stop = self._size if length < 0 else min(self._at + length, self._size)
        data = self._pieces.read(self._at, stop)
        self._at += memoryview(data).nbytes
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True
