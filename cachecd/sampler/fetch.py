"""Bytes from a store: its listing, and reads that are tried again where that can help.

A `Backend` (stores/backend.py) is one kind of store and makes one attempt; `Store` adds patience and
judgement: which failures to try again, how long, and whether in the end the object or the store is to
blame.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import Buffer

from cachecd.errors import ConfigError, SourceError, SourceUnreachableError, UnitError
from cachecd.model import ObjectInfo
from cachecd.sampler.stores.backend import Backend, TransientError

if TYPE_CHECKING:
    from cachecd.config import SourceConfig


@dataclass(frozen=True, slots=True)
class Retry:
    """How long a failing read is tried again: at most `tries` times, none begun after `within`
    seconds. The pause before each is a random part of a span that doubles from `first` to `longest`
    (full jitter), so that many readers that failed together do not come back together.
    """

    tries: int = 7
    within: float = 30.0
    first: float = 0.5
    longest: float = 8.0

    def pause(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row."""
        return random.uniform(0, min(self.longest, self.first * 2 ** (failures - 1)))


class Store:
    """One source's store, for one event loop. Reads may run concurrently.

    `where` names it in messages.
    """

    def __init__(self, backend: Backend, retry: Retry) -> None:
        self._backend = backend
        self._retry = retry
        self._witness = ""  # the object that was last read without trouble

    @property
    def where(self) -> str:
        return self._backend.where

    def list(self) -> Iterator[list[ObjectInfo]]:
        """All objects in pages of at most PAGE, in the store's order (object stores and files: by
        the bytes of the key). Blocks: call it in a thread.

        Keys are relative to the source's URL, which names a folder whether it ends in "/" or not.
        Empty objects whose key ends in "/" (the folder markers of S3 consoles) are left out; of
        files, so are those whose name, or whose folder's name, starts with a dot.
        SourceUnreachableError says what to do.
        """
        return self._backend.list()

    async def get(
        self, key: str, size: int, etag: str = "", start: int = 0, stop: int | None = None
    ) -> Buffer:
        """Bytes [start, stop) of the object, which is `size` bytes long; all of it by default.

        Exactly that many bytes, of the version that `etag` names. UnitError if that cannot be had,
        SourceUnreachableError if nothing can be read from the store. Failures that may pass
        (timeouts, 5xx, throttling, cut connections) are tried again first. An object that keeps
        failing while another one can be read is at fault itself: UnitError.
        """
        end = size if stop is None else stop
        body = await self._patiently(key, start, None if (start, end) == (0, size) else end, etag)
        length = memoryview(body).nbytes
        if length != end - start:
            got = f"{start + length} bytes" if start + length < end else f"more than {size} bytes"
            raise UnitError(f"the object has {got}, {size} were listed: it changed since")
        if size:
            self._witness = key
        return body

    async def _patiently(self, key: str, start: int, stop: int | None, etag: str) -> Buffer:
        began = time.monotonic()
        failures = 0
        while True:
            try:
                return await self._backend.read(key, start, stop, etag)
            except TransientError as error:
                failures += 1
                elapsed = time.monotonic() - began
                if failures >= self._retry.tries or elapsed >= self._retry.within:
                    raise await self._verdict(error, failures, elapsed) from error
            await asyncio.sleep(self._retry.pause(failures))

    async def _verdict(self, error: TransientError, tries: int, seconds: float) -> SourceError:
        reason = f"{error} ({tries} tries in {seconds:.1f} s)"
        if self._witness and not error.throttled:
            try:
                await self._backend.read(self._witness, 0, 1, "")
            except SourceError:
                pass
            else:
                return UnitError(f"{reason}, while other objects can be read")
        return SourceUnreachableError(f"{self.where}: {reason}")


def open_store(source: SourceConfig, connections: int, retry: Retry | None = None) -> Store:
    """The store that `source` names, for up to `connections` requests at a time.

    Touches no network. s3:// signs in and lists by boto3 (environment, profiles, roles) and reads
    by obstore; gs:// and az:// are obstore's; file:// and absolute paths are read directly; every
    other URL is fsspec's. ConfigError for a URL that nothing installed can read.
    """
    retry = retry or Retry()
    scheme, separator, path = source.url.partition("://")
    if not separator:
        scheme, path = "file", source.url
    if source.endpoint and scheme not in ("s3", "s3a"):
        raise ConfigError(f"source {source.url}: endpoint is for s3://, not for {scheme}://")
    backend: Backend
    # Imported where needed: boto3 alone takes 0.1 s, which a source of files need not spend.
    match scheme:
        case "s3" | "s3a":
            from cachecd.sampler.stores.s3 import S3Backend

            backend = S3Backend(source, connections, retry.tries)
        case "file":
            from cachecd.sampler.stores.local import LocalBackend

            backend = LocalBackend(path, connections)
        case "gs" | "az" | "azure" | "abfs" | "abfss" | "adl":
            from cachecd.sampler.stores.cloud import open_cloud

            backend = open_cloud(source, connections)
        case _:
            from cachecd.sampler.stores.filesystem import FsspecBackend

            backend = FsspecBackend(source.url, connections)
    return Store(backend, retry)
