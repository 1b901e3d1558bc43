"""A store with retries: its listing, and reads that are repeated if a retry can help.

A `Backend` (stores/backend.py) is one kind of store and makes one attempt. `Store` adds patience
(retry.py has the figures) and judgement: which failures to retry, how long, and whether the object or
the store is at fault in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from typing_extensions import Buffer

from cachecd.config.keypattern import alike, other_forms
from cachecd.errors import ConfigError, SourceError, SourceUnreachableError, UnitError
from cachecd.model import ObjectInfo
from cachecd.stores.answers import redacted, without_secrets
from cachecd.stores.backend import (
    Backend,
    GoneError,
    NotPartialError,
    Nowhere,
    SlowError,
    TransientError,
    is_shortage,
    resized,
)
from cachecd.stores.gate import Gate
from cachecd.stores.key_ranges import Ask, KeyPage, Lanes
from cachecd.stores.retry import Budget, Pace, Retry
from cachecd.stores.sweep import ListingSweep
from cachecd_client.errors import CallerError, WorldError

if TYPE_CHECKING:
    from cachecd.config import SourceConfig

# After its other tries, an object is blamed if it fails more than this many times, each time although
# another object can be read. If a store fails every second request, this blames one sound object in a
# thousand; if it fails every tenth request, none.
_PROOFS = 3
_DENIED_TRIES = 2  # one more try, in case the right to read was granted just now
_Result = TypeVar("_Result")
_LONGEST = 10  # times `within`, for one object, if the store answers other requests


class Store:
    """One source's store, for one event loop. Up to `connections` reads may run at a time. `where` is its
    name in messages."""

    def __init__(self, backend: Backend, retry: Retry, connections: int) -> None:
        self.backend = backend
        self._retry = retry
        self._connections = connections
        self._budget = Budget()
        self._pace = Pace(connections)
        self._gate = Gate(self._pace)
        self._witness = ""  # the last object that was read successfully
        self._read_at = float("-inf")  # when it was read
        self._looking = asyncio.Lock()
        # A separate thread: a listing that never ends must not delay other work.
        self._glimpsing = ThreadPoolExecutor(1, "glimpse")
        self._looked_at = float("-inf")
        # Whether another object could be read then. None: it exists, but no part of it can be read.
        self._answers: bool | None = False

    @property
    def where(self) -> str:
        return self.backend.where

    @property
    def is_throttled(self) -> bool:
        """Whether the store has throttled requests, or was too slow for them, and gets fewer since then."""
        return self._pace.is_lowered or self._pace.not_before > time.monotonic()

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        """Yields objects in pages of at most PAGE, in the store's order (in object stores and files, by
        the bytes of the key). With `start_after`, yields only objects after this key. Blocks: call it in
        a thread.

        Keys are relative to the source's URL, which names a folder with or without a final "/". The store
        of a source's units (units/unit_store.py) omits what LeftOut names. SourceUnreachableError: the
        message says what to do.
        """
        return self.backend.list(start_after)

    def sweep(self, lanes: Lanes) -> ListingSweep | None:
        """Like `list`, but with concurrent requests (key_ranges.py). None if the store cannot list
        from any key on, or only slowly. The lanes report a store that lists in another order."""
        page: Callable[[Ask], KeyPage] | None = getattr(self.backend, "page", None)
        if page is None:
            return None
        units = getattr(self.backend, "units", list)  # of the objects that are listed
        return ListingSweep(page, lanes, self.where, self._connections, self._retry, units)

    async def get(
        self, key: str, size: int | None, etag: str = "", start: int = 0, stop: int | None = None
    ) -> Buffer:
        """Returns bytes [start, stop) of the object, by default all of it. The object has `size` bytes
        (None: unknown).

        Returns exactly this many bytes, of the version `etag`. UnitError if that is impossible,
        SourceUnreachableError if nothing can be read from the store. Failures that may pass (timeouts, 5xx,
        throttling, cut connections) are retried first, but not a shortage: TransientError. If an object
        keeps failing while another object can be read before each try, the object is at fault: UnitError
        with `passing` set.
        """
        stop = size if stop is None else stop
        assert stop is not None, "neither a size nor an end was given"
        if start == stop and size is None:  # no store has a range of nothing
            return b""

        async def read() -> Buffer:
            body = await self.backend.read(key, start, stop, size, etag)
            if (length := memoryview(body).nbytes) != stop - start:
                raise resized(start + length, stop if size is None else size)
            return self._was_read(key, body)

        return await self._insist(key, stop - start, read)

    async def tail(self, key: str, length: int, etag: str = "") -> tuple[int, Buffer]:
        """Returns an object's size and its last `length` bytes, or all bytes of a shorter object. Raises
        the errors of `get`."""

        async def read() -> tuple[int, Buffer]:
            size, body = await self.backend.tail(key, length, etag)
            if (actual := memoryview(body).nbytes) != min(length, size):
                raise resized(actual, min(length, size))
            return size, self._was_read(key, body)

        return await self._insist(key, length, read)

    async def find(self, key: str) -> ObjectInfo:
        """Returns the object as a listing would show it now. Raises the errors of `get`; GoneError if it
        does not exist."""
        info = await self._insist(key, 0, lambda: self.backend.find(key))
        if info.size and not self._witness:
            self._witness = key  # a caller that only finds objects has read none
        return info

    async def _insist(
        self, key: str, length: int, ask: Callable[[], Awaitable[_Result]]
    ) -> _Result:
        """Returns the result of an attempt at reading `length` bytes of the object, retried as `get`
        promises."""
        began = time.monotonic()
        failures = slow = proofs = 0
        while True:
            attempted = time.monotonic()
            try:
                result = await self._attempt(length, slow, ask)
            except GoneError as missing:
                if await self._can_be_read(attempted, but=key, in_parts=False):
                    raise await self._alike(key) or missing from None
                error = TransientError(f"{missing}, and no other object can be read")
                error.__cause__ = missing
            except TransientError as transient:
                if is_shortage(transient):
                    raise
                error = transient
            else:
                return result
            failures += 1
            slow += isinstance(error, SlowError)
            now = time.monotonic()
            spent = failures >= self._retry.tries or now - began >= self._retry.within
            suspect = spent or (error.denied and failures >= _DENIED_TRIES)
            # A denied read takes no token: it costs the store nothing, and many objects may be denied.
            poor = not (suspect or error.denied or self._budget.take(now))
            if suspect or poor:
                if not error.throttled and await self._can_be_read(now, but=key):
                    proofs += suspect
                    if proofs > (1 if error.denied else _PROOFS):
                        raise self._verdict(error, failures, began, UnitError)
                elif (spent or poor) and not self._may_recover(began):
                    raise self._verdict(error, failures, began, SourceUnreachableError)
            pause = self._retry.pause(failures, random.random())
            await asyncio.sleep(max(pause, self._budget.wait(now)) if poor else pause)

    async def _alike(self, key: str) -> UnitError | None:
        """Returns the error for a key that is missing, but in another Unicode normalization."""
        for other in other_forms(key):
            with contextlib.suppress(Exception):
                async with asyncio.timeout(self._retry.silence):
                    await self.backend.find(other)
                return UnitError(alike(key, other))
        return None

    async def _attempt(
        self, length: int, slow: int, ask: Callable[[], Awaitable[_Result]]
    ) -> _Result:
        patience = self._retry.patience(length, slow)
        async with self._gate:
            began = time.monotonic()
            try:
                # Most backends notice silence. This also ends a reply that only drips.
                async with asyncio.timeout(patience):
                    result = await ask()
            except TimeoutError:
                self._pace.overloaded(time.monotonic(), began)
                raise SlowError(f"{length} bytes did not arrive within {patience:.0f} s") from None
            except TransientError as error:
                if error.throttled:
                    self._pace.overloaded(time.monotonic(), began, error.after)
                raise
            except (CallerError, WorldError, MemoryError):
                raise
            except Exception as error:
                # Any error of a store's library is a failure of the store, and may pass.
                raise TransientError(
                    f"{type(error).__name__}: {redacted(str(error))}".rstrip(": ")
                ) from error
        self._pace.succeeded()
        return result

    def _was_read(self, key: str, body: Buffer) -> Buffer:
        if memoryview(body).nbytes:
            self._read_at = time.monotonic()
            self._budget.succeeded(self._read_at)
            self._witness = key
        return body

    async def _can_be_read(self, since: float, but: str, in_parts: bool = True) -> bool:
        """Whether another object than `but` can be read now, or was read since then."""
        async with self._looking:
            if self._read_at > since and self._witness != but:
                return True
            if self._looked_at < since:
                self._looked_at = time.monotonic()
                self._answers = await self._look(but)
            return bool(self._answers) or (self._answers is None and not in_parts)

    async def _look(self, but: str) -> bool | None:
        candidates = [self._witness] if self._witness not in ("", but) else []
        try:
            async with asyncio.timeout(self._retry.silence):
                for candidate in candidates:
                    if await self._readable(candidate):
                        return True
                # If the first object of a source fails, no other object is known yet.
                loop = asyncio.get_running_loop()
                others = await loop.run_in_executor(self._glimpsing, self.backend.glimpse)
                keys = [o.key for o in others if o.size and o.key not in (but, *candidates)]
                for candidate in keys[:3]:
                    if await self._readable(candidate):
                        self._witness = candidate
                        return True
        except NotPartialError:
            return None
        except Exception:  # any error of this attempt only means that nothing was read
            pass
        return False

    async def _readable(self, key: str) -> bool:
        try:
            return memoryview(await self.backend.read(key, 0, 1, None, "")).nbytes == 1
        except UnitError:
            return False

    def _may_recover(self, began: float) -> bool:
        """Whether the store has answered any request lately, so that this read deserves more time."""
        now = time.monotonic()
        lately = max(began, now - self._retry.within)
        return self._read_at > lately and now - began < _LONGEST * self._retry.within

    def _verdict(
        self, error: TransientError, tries: int, began: float, kind: type[SourceError]
    ) -> SourceError:
        reason = f"{error} ({tries} tries in {time.monotonic() - began:.1f} s)"
        if kind is UnitError:
            return UnitError(f"{reason}, while other objects can be read", passing=True)
        verdict = kind(f"{self.where}: {reason}")
        verdict.__cause__ = error
        return verdict


def open_store(source: SourceConfig, connections: int, retry: Retry | None = None) -> Store:
    """Returns the store that `source.url` names, without the tables that list or label its objects."""
    retry = retry or Retry()
    return Store(_open_backend(source, connections, retry), retry, connections)


def _open_backend(source: SourceConfig, connections: int, retry: Retry) -> Backend:
    if not source.url:
        return Nowhere()
    address = source.address
    if source.endpoint and address.scheme != "s3":
        raise ConfigError(
            f"source {without_secrets(source.url)}: endpoint is for s3://, not for {address.scheme}://"
        )
    # Imported where needed, because boto3 alone takes 0.1 s.
    match address.scheme:
        case "s3":
            from cachecd.stores.s3 import S3Backend

            return S3Backend(source, connections, retry.tries, retry.silence)
        case "file":
            from cachecd.stores.local import LocalBackend

            return LocalBackend(f"/{address.prefix}", connections)
        case "gs" | "az":
            from cachecd.stores.cloud import open_cloud

            return open_cloud(source, connections, retry.silence)
        case "":
            from cachecd.stores.listed_urls import UrlsBackend

            return UrlsBackend(source, connections, retry.silence)
        case "http":
            from cachecd.stores.web import WebBackend

            return WebBackend(source, connections, retry.silence)
        case "hf":
            from cachecd.stores.filesystem import HubBackend

            return HubBackend(source, connections)
        case _:
            from cachecd.stores.filesystem import FsspecBackend

            return FsspecBackend(source.url, connections)
