"""Gives the status document to the history and to HTTP, once a second.

A failure of either is logged, is in `complaints`, and stops nothing else. The history survives a restart
in a file of at most 1 MiB, and of at most 1 % of the limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from cachecd.config.models import ServerConfig
from cachecd.config.values import http_address
from cachecd.daemon.loop import CacheLoop
from cachecd.disk.durable import read, replace
from cachecd.errors import ConfigError, DiskError
from cachecd.monitor.history import MOST_BYTES, History
from cachecd.policy import events as ev
from cachecd.stores.extras import extra

if TYPE_CHECKING:
    from cachecd.monitor.http import HttpServer

_SECOND, _MINUTE = 1.0, 60.0
# Bytes by which the file may grow at once. The daemon reserves room for the growth of small files between
# two measurements, 256 KiB, and the file counts twice.
_MOST_GROWTH = 64 << 10

_log = structlog.get_logger("cachecd.daemon")


class Monitoring:
    """Belongs to the event loop. `status` returns the status document of an open cache."""

    def __init__(self, server: ServerConfig, status: Callable[[], dict[str, Any]]) -> None:
        self._config, self._status = server, status
        self._history = History()
        self._http: HttpServer | None = None
        self._zero = time.time() - time.monotonic()  # so that the clock never goes back
        self._size = 0  # bytes of the file
        self._saved = 0.0

    async def run(self, cache: CacheLoop) -> None:
        """Runs until it is cancelled. `cache`: the open cache. Then the caller calls `close`."""
        self._history = await asyncio.to_thread(self._read, cache)
        cache.failures.note("server.http", await asyncio.to_thread(self._listen))
        self._saved = time.monotonic()
        while True:
            try:
                await self._sample(cache)
                cache.failures.note("monitoring", "")
            except Exception as error:  # a defect here must not end the daemon
                why = f"it failed unexpectedly: {type(error).__name__}: {error}"
                if cache.failures.note("monitoring", why):
                    _log.error("traceback of the failure", exc_info=error)
            await asyncio.sleep(_SECOND)

    async def close(self, cache: CacheLoop) -> None:
        """Saves the history, and ends the server."""
        if self._history.samples("seconds"):
            await self._save(cache)
        if self._http is not None:
            await asyncio.to_thread(self._http.close)

    async def _sample(self, cache: CacheLoop) -> None:
        document = self._status()
        self._history.add(document, self._zero + time.monotonic())
        if self._http is not None:
            self._http.offer(document)
            reason = "" if self._http.is_alive else "its thread has ended: restart the daemon"
            cache.failures.note("server.http", reason)
        if time.monotonic() >= self._saved + _MINUTE:
            self._saved = time.monotonic()
            await self._save(cache)

    def _listen(self) -> str:
        """Starts the server, if one is configured. Returns why it cannot start, or "". Its imports take
        half a second."""
        if (address := self._config.http) is None:
            return ""
        try:
            with extra("http", "server.http"):
                from cachecd.monitor.http import HttpServer
            self._http = HttpServer(
                *http_address(address),
                self._history,
                shows_keys=self._config.http_keys,
                any_host=self._config.http_any,
            )
        except ConfigError as error:
            return f"HTTP is off: {error}"
        except OSError as error:
            return (
                f"HTTP is off: cannot listen on {address}: {error.strerror}. Set server.http to a free "
                "address, and restart the daemon"
            )
        _log.info("page and metrics", url=f"http://{address}/")
        return ""

    def _read(self, cache: CacheLoop) -> History:
        path = cache.layout.history
        try:
            if (content := read(path)) is None:
                return History()
            self._size = len(content)
            return History.decode(content, self._zero + time.monotonic())
        except (ValueError, DiskError) as error:
            _log.warning("history damaged: it begins anew", path=str(path), why=str(error))
            return History()

    async def _save(self, cache: CacheLoop) -> None:
        """Replaces the file, unless the disk is full or fails."""
        most = min(MOST_BYTES, cache.policy.room.limit // 100, self._size + _MOST_GROWTH)
        content = await asyncio.to_thread(self._history.encode, most)
        if not content or cache.policy.disk.why:
            return

        def write() -> list[ev.Event]:
            reason = ""
            try:
                cache.work.check()
                # Without a sync: the file has a digest, and may be lost.
                replace(cache.layout.history, content, is_synced=False)
                self._size = len(content)
            except DiskError as error:
                reason = str(error)
            cache.failures.note("writing the history", reason)
            return []

        cache.runner.record(write)
