"""A source's store as the user's code sees it: small, and without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, BinaryIO, Protocol, TypeVar

from typing_extensions import Buffer

from cachecd.model import ObjectInfo
from cachecd.sampler.ahead import in_pieces
from cachecd.stores.fetch import Store

T = TypeVar("T")

# What a file reads at a time: the more, the longer it has been read from one end towards the other.
_LEAST, _MOST = 256 << 10, 16 << 20


class Access(Protocol):
    """How a view reaches its store. Blocks, and may be called in several threads."""

    def list(self) -> Iterator[list[ObjectInfo]]: ...
    def stat(self, key: str) -> ObjectInfo: ...
    def read(self, key: str, start: int, stop: int, etag: str) -> Buffer: ...


class StoreView:
    """The objects below a source's URL; keys are relative to it.

    Reads are tried again where that can help, and share the limits of the configuration. What they
    raise need not be handled: it costs the unit, or nothing, where the whole store is down. Blocks; may
    be used in several threads, for several reads at a time.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    def list(self) -> Iterator[ObjectInfo]:
        """All objects, with `key` (str), `size` (bytes) and `etag`."""
        for page in self._access.list():
            yield from page

    def stat(self, key: str) -> ObjectInfo:
        """Size and etag of one object."""
        return self._access.stat(key)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of an object, up to its end if stop is None; exactly as many."""
        etag = ""
        if stop is None:
            found = self._access.stat(key)
            stop, etag = found.size, found.etag
        if not 0 <= start <= stop:
            raise ValueError(f"bytes {start} to {stop} of {key!r}, expected 0 <= start <= stop")
        return bytes(self._access.read(key, start, stop, etag)) if start < stop else b""

    def open(self, key: str) -> BinaryIO:
        """The object as a file, which may be read from anywhere; only what is read is fetched."""
        return io.BufferedReader(_File(self._access, self._access.stat(key)), 64 << 10)


class _File(io.RawIOBase):
    def __init__(self, access: Access, about: ObjectInfo) -> None:
        self._access, self._about = access, about
        self._at = 0
        self._begin, self._data = 0, memoryview(b"")
        self._ahead = _LEAST

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._about.size}[whence]
        if origin + offset < 0:
            raise ValueError(f"position {origin + offset}, expected at least 0")
        self._at = origin + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer).cast("B")
        if self._at >= self._about.size or not len(into):
            return 0
        end = self._begin + len(self._data)
        if not self._begin <= self._at < end:
            self._ahead = min(2 * self._ahead, _MOST) if self._at == end else _LEAST
            stop = min(self._at + max(len(into), self._ahead), self._about.size)
            about = self._about
            self._data = memoryview(self._access.read(about.key, self._at, stop, about.etag)).cast(
                "B"
            )
            self._begin = self._at
        skipped = self._at - self._begin
        piece = self._data[skipped : skipped + len(into)]
        into[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class Direct:
    """Access to a store by an event loop of its own, in a thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_forever()

    def list(self) -> Iterator[list[ObjectInfo]]:
        return self._store.list()

    def stat(self, key: str) -> ObjectInfo:
        return self.do(self._store.find(key))

    def read(self, key: str, start: int, stop: int, etag: str) -> Buffer:
        return self.do(in_pieces(lambda a, b: self._store.get(key, None, etag, a, b), start, stop))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """What it brings, done by the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Ends its thread. Nobody may be waiting for it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
