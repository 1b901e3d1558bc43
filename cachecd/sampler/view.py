"""Gives user code a source's store: a small blocking interface."""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, BinaryIO, TypeVar

from cachecd.config import SourceConfig
from cachecd.config.address import Address
from cachecd.model import ObjectInfo
from cachecd.sampler.formats.content import Content
from cachecd.stores.fetch import Store, open_store
from cachecd.stores.retry import Retry

T = TypeVar("T")

# Bytes of one fetch of a file. A fetch that continues the previous fetch is twice as large.
_LEAST, _MOST = 256 << 10, 16 << 20

# Of the folder that has a file of the configuration: a manifest, or a tokenizer. Fewer tries than for an
# object, because a missing file means a wrong URL, and listings are retried.
_CONNECTIONS, _TRIES = 4, Retry(tries=3, within=10.0)

# Runs a coroutine and returns its result. Blocks. Several threads may call it.
Do = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


class StoreView:
    """The objects below a source's URL. Keys are relative to the URL.

    Reads are retried if a retry can help, and obey the limits of the configuration. User code need not
    handle their errors. An error skips the unit; if the whole store is down, no unit is skipped. All
    methods block. Several threads may read at the same time.
    """

    def __init__(self, content: Content, do: Do) -> None:
        self._content, self._do = content, do

    def list(self) -> Iterator[ObjectInfo]:
        """Yields all objects, with `key` (str), `size` (bytes) and `etag`."""
        for page in self._content.list():
            yield from page

    def stat(self, key: str) -> ObjectInfo:
        """Returns `key`, `size` and `etag` of one object."""
        info: ObjectInfo = self._do(lambda: self._content.find(key))
        return info

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Returns exactly the bytes [start, stop) of an object; if `stop` is None, up to its end."""
        etag = ""
        if stop is None:
            info = self.stat(key)
            stop, etag = info.size, info.etag
        if not 0 <= start <= stop:
            raise ValueError(f"bytes {start} to {stop} of {key!r}, expected 0 <= start <= stop")
        return bytes(self._read(key, start, stop, etag)) if start < stop else b""

    def open(self, key: str) -> BinaryIO:
        """Returns the object as a seekable file, which fetches only the parts that are read."""
        return io.BufferedReader(_File(self._read, self.stat(key)), 64 << 10)

    def _read(self, key: str, start: int, stop: int, etag: str) -> memoryview:
        data = self._do(lambda: self._content.read(start, stop, key, etag))
        return memoryview(data).cast("B")


class _File(io.RawIOBase):
    def __init__(self, read: Callable[[str, int, int, str], memoryview], about: ObjectInfo) -> None:
        self._read, self._about = read, about
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
            self._data = self._read(self._about.key, self._at, stop, self._about.etag)
            self._begin = self._at
        skipped = self._at - self._begin
        piece = self._data[skipped : skipped + len(into)]
        into[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class Direct:
    """Runs a store's event loop in a separate thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_forever()

    def view(self, store: Store) -> StoreView:
        """Returns a view of the store. This event loop runs the reads."""
        return StoreView(Content.without_chunks(ObjectInfo("", 0), store), self.do)

    def do(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Returns the result of `work`, which the event loop runs."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result()

    def close(self) -> None:
        """Ends the thread. No caller may be waiting."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


@contextlib.contextmanager
def opened_folder(source: SourceConfig, url: str) -> Iterator[tuple[StoreView, str]]:
    """Opens the folder that contains a URL's object, with the source's credentials. Yields a view of the
    folder, and the object's name."""
    folder = url[: url.rindex("/") + 1]
    address = Address.of(folder)
    endpoint = source.endpoint if address.scheme == "s3" else None
    place = source.model_copy(update={"url": folder, "endpoint": endpoint})
    with contextlib.closing(Direct()) as direct:
        view = direct.view(open_store(place, _CONNECTIONS, _TRIES))
        yield view, address.key_of(url) or ""
