"""Inflates objects that are compressed as a whole, as they arrive. Their first bytes show the method."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator

from typing_extensions import Buffer

from cachecd.errors import UnitError
from cachecd.model import Unit
from cachecd.sampler.formats.content import Content
from cachecd_client.files.inflate import (
    HEAD,
    Compression,
    InflateError,
    Inflater,
    compression_of_head,
)

# Bytes of a record, which is held in memory. A larger record is refused before it arrives. The size of the
# object is no bound, because Deflate can make a thousand bytes from one, and Zstandard 30,000.
LARGEST = 1 << 30


async def unpacked(
    unit: Unit,
    content: Content,
    known: Iterable[Compression] = ("GZIP", "ZLIB", "ZSTD"),
    from_start: bool = False,
) -> tuple[AsyncIterator[Buffer], bool]:
    """Returns the unit's chunks, and whether they were compressed. Inflates `known` compressions.

    A compressed object can only be read from its start: its parts have an `offset` of 0, or the chunks
    begin at its start whatever `offset` is (`from_start`). If the stream is damaged or incomplete, the
    chunks raise UnitError, also when they are requested again. The bytes before the damage may be used.
    """
    if unit.offset and not from_start:
        return content.chunks, False
    chunks = _Peeked(content.chunks)
    compression = compression_of_head(await chunks.peek(HEAD))
    if compression is None or compression not in known:
        return chunks, False
    return _Inflated(chunks, compression), True


def inflated(data: bytes, compression: Compression, most: int) -> bytes:
    """Returns the content of compressed data. ValueError if the data is damaged, or if its content has more
    than `most` bytes."""
    content = bytearray()
    inflater = Inflater(compression)
    for piece in inflater.feed(data):
        content += piece
        if len(content) > most:
            raise ValueError(f"it inflates to more than {most} bytes")
    inflater.finish()
    return bytes(content)


class _Peeked(AsyncIterator[Buffer]):
    """Chunks with `peek`, which returns their first bytes without consuming them."""

    def __init__(self, chunks: AsyncIterator[Buffer]) -> None:
        self._chunks = chunks
        self._peeked: deque[Buffer] = deque()

    async def peek(self, count: int) -> bytes:
        """Returns the first `count` bytes, or all bytes if there are fewer."""
        head = b""
        while len(head) < count and (chunk := await anext(self._chunks, None)) is not None:
            self._peeked.append(chunk)
            head += bytes(memoryview(chunk).cast("B")[: count - len(head)])
        return head

    async def __anext__(self) -> Buffer:
        return self._peeked.popleft() if self._peeked else await anext(self._chunks)


class _Inflated(AsyncIterator[Buffer]):
    """Inflates compressed chunks into pieces of at most a MiB."""

    def __init__(self, chunks: AsyncIterator[Buffer], compression: Compression) -> None:
        self._chunks = chunks
        self._inflater = Inflater(compression)
        self._pieces: Iterator[bytes] = iter(())
        self._ended = False
        self._error: UnitError | None = None

    async def __anext__(self) -> Buffer:
        if self._error is not None:
            raise self._error
        await asyncio.sleep(0)  # lets heartbeats run: a chunk may inflate to gigabytes
        try:
            while True:
                for piece in self._pieces:
                    if piece:
                        return piece
                if self._ended:
                    raise StopAsyncIteration
                chunk = await anext(self._chunks, None)
                if chunk is None:
                    self._inflater.finish()
                    self._ended = True
                else:
                    self._pieces = self._inflater.feed(memoryview(chunk).cast("B"))
        except InflateError as error:
            reason = str(error).replace("the file", "the object")
            place = (
                f", near byte {self._inflater.fed} of the object; the records before it are kept"
            )
            self._error = UnitError(reason + place)
            raise self._error from None
