"""Limits how fast bytes may be fetched, by one process or by several that share a link."""

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
# A timer that fires late, as each does by a millisecond or so, must not cost the link what it has missed.
CREDIT = 0.05  # seconds


class Throttle:
    """A token bucket. Any span of time passes at most `rate` bytes a second, plus the bytes of CREDIT
    seconds, plus the last request. A rate of None is no limit.

    `shared`: the descriptor of a file of SIZE bytes, zeros at first; it may be closed after the call. All
    processes with this file share the rate: a process that fetches alone gets all of it, several processes
    take turns, each in the order of its requests. None: this process has the whole rate. Belongs to one
    event loop.
    """

    def __init__(self, rate: float | None, shared: int | None = None) -> None:
        self._rate = rate
        self._lock: int | None = None
        if shared is not None:
            # Of its own opening, so that it excludes all others, and not for writing: what the user's code
            # writes to it by its number is no word about the link.
            self._lock = os.open(f"/proc/self/fd/{shared}", os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._lock)
        # When all that anybody has been let through so far will have been paid for: CLOCK_MONOTONIC,
        # which is one for all processes.
        self._free_at = memoryview(bytearray(SIZE)) if shared is None else mapped(shared, SIZE)
        self._turn = asyncio.Lock()

    async def take(self, amount: int) -> None:
        """Waits until `amount` more bytes may be fetched."""
        if self._rate is None:
            return
        # One at a time, so that no process stands in the shared line more than once: who has many
        # requests gets no more than who has few, and what is given up while it waits is one amount.
        async with self._turn:
            if (wait := self._reserve(amount / self._rate)) > 0:
                await asyncio.sleep(wait)

    def _reserve(self, seconds: float) -> float:
        """Reserves the link's time for that many bytes. Returns the seconds until then."""
        if self._lock is None:
            return self._advance(seconds)
        # The kernel gives it back if this process is killed here.
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
