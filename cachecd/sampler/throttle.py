"""Limits the rate of fetched bytes, for one process or for several processes that share a link."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import time
import weakref

from cachecd.sampler.descriptors import mapped

SIZE = 8  # bytes of the shared file
_FREE_AT = struct.Struct("<d")
# Each timer fires about a millisecond late. With this credit, the link does not lose the delay.
CREDIT = 0.05  # seconds


class Throttle:
    """A token bucket. In any period it admits at most `rate` bytes per second, plus the bytes of CREDIT
    seconds, plus the last request. A rate of None: no limit. Belongs to one event loop.

    `shared`: the descriptor of a file of SIZE bytes, which are 0 at first. The caller may close it after
    this call. All processes with this file share the rate. A process that fetches alone gets the whole
    rate; several processes take turns. None: this process has the whole rate.
    """

    def __init__(self, rate: float | None, shared: int | None = None) -> None:
        self._rate = rate
        self._lock: int | None = None
        if shared is not None:
            # flock excludes other processes only if each process opens the file itself. Read-only, so that
            # user code cannot change the bytes through this descriptor.
            self._lock = os.open(f"/proc/self/fd/{shared}", os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._lock)
        # The time at which the link is free again (CLOCK_MONOTONIC, the same clock in all processes).
        self._free_at = memoryview(bytearray(SIZE)) if shared is None else mapped(shared, SIZE)
        self._turn = asyncio.Lock()

    @property
    def is_short(self) -> bool:
        """Whether the next request must wait."""
        free_at: float = _FREE_AT.unpack_from(self._free_at)[0]
        return self._rate is not None and free_at > time.monotonic()

    async def take(self, amount: int) -> None:
        """Waits until `amount` more bytes may be fetched."""
        if self._rate is None:
            return
        # At most one request of each process waits. So a process with many requests gets no more than a
        # process with few, and a cancelled wait wastes the time of one request at most.
        async with self._turn:
            if (wait := self._reserve(amount / self._rate)) > 0:
                await asyncio.sleep(wait)

    def _reserve(self, seconds: float) -> float:
        """Reserves these seconds of the link. Returns how long the caller must wait."""
        if self._lock is None:
            return self._advance(seconds)
        # If this process is killed here, the kernel releases the lock.
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            return self._advance(seconds)
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _advance(self, seconds: float) -> float:
        now = time.monotonic()
        free_at: float = _FREE_AT.unpack_from(self._free_at)[0]
        begins = max(now - CREDIT, free_at)
        _FREE_AT.pack_into(self._free_at, 0, begins + seconds)
        return begins - now
