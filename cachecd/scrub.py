"""The background scrub: reads every shard again now and then, so that what the disk has lost is fetched
again before a trainer misses it.

A start begins somewhere in the middle: a daemon that is started daily must not look at the same shards
every day.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import io
import mmap
import os
import platform
import random
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog

from cachecd.complaints import Complaints
from cachecd.dataset import DatasetState
from cachecd.errors import DiskError
from cachecd.events import Event, ShardVerified
from cachecd.layout import Layout
from cachecd.model import Held, ShardId
from cachecd.rounds import Rounds
from cachecd.sampler.throttle import Throttle
from cachecd.verify import disagreement
from cachecd_client._core import FrameScanner
from cachecd_client.errors import CorruptRecordError, CorruptSidecarError

PIECE = 1 << 20  # bytes of one read, which is also how far the rate is exceeded for a moment
_PAUSE = 0.5  # seconds until a cache without a shard, or a disk that fails, is looked at again

_log = structlog.get_logger("cachecd.scrub")


class Scrub:
    """Reads the served shards of `datasets`, at most `rate` bytes a second; None: none, for now.

    A shard that is not what was written is told as ShardVerified(sound=False), and so is one that stays
    unreadable while others can be read. It reads past the page cache, which is the trainers', and with
    the lowest priority but idleness: a disk that is never idle is looked at too.
    """

    def __init__(
        self,
        rate: float | None,
        layout: Layout,
        datasets: Mapping[str, DatasetState],
        held_by: Callable[[ShardId], Held],
        feed: Callable[[Event], None],
        complaints: Complaints,
        check: Callable[[], None],
    ) -> None:
        """`held_by`: what the plan counts the shard for. `check`: DiskError if what lies under
        cache.dir is not what it was."""
        self._rate = rate
        self._throttle = Throttle(rate)
        self._layout = layout
        self._datasets = datasets
        self._held_by = held_by
        self._feed = feed
        self._complaints = complaints
        self._check = check
        self._rounds = Rounds(random.random())
        self._bytes = 0
        self._corrupt = 0

    def set_rate(self, rate: float | None) -> None:
        """From the next piece on."""
        if rate != self._rate:
            self._rate, self._throttle = rate, Throttle(rate)

    def status(self) -> dict[str, Any] | None:
        """Of the status document; None if there is no scrub."""
        if self._rate is None:
            return None
        return {
            "bytes_per_second": round(self._rate),
            "round": round(self._rounds.progress, 4),
            "verified_shards": self._rounds.verified,
            "verified_bytes": self._bytes,
            "corrupt_shards": self._corrupt,
            "unreadable_shards": self._rounds.unreadable,
        }

    async def run(self) -> None:
        """Until it is cancelled."""
        pool = _pool()
        try:
            while True:
                shard = self._rounds.next(self._shards, self._served) if self._rate else None
                if shard is None:
                    await asyncio.sleep(_PAUSE)
                    continue
                if not await self._look_at(shard, pool):
                    await asyncio.sleep(_PAUSE)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    async def _look_at(self, shard: ShardId, pool: ThreadPoolExecutor) -> bool:
        """Whether the disk let it be read, or the shard is not of interest any more."""
        path = self._layout.shard(shard)
        try:
            self._check()
            why = await self._finding(path, pool)
            self._rounds.was_read(shard)
        except FileNotFoundError as error:
            why = f"{error.filename}: is gone"
        except (DiskError, OSError) as error:
            if not self._served(shard):
                return True
            why = f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"
            if not self._rounds.could_not_be_read(shard):
                self._complaints.refused("shard not scrubbed", "", why)
                return False
        try:
            if why:
                self._give_up(shard, why)
        except DiskError as error:
            self._complaints.refused("shard not scrubbed", "", str(error))
            return False
        if not self._rounds.unreadable:
            self._complaints.works("shard not scrubbed", "")
        return True

    def _give_up(self, shard: ShardId, why: str) -> None:
        self._check()  # a cache that was moved away or unmounted has lost no shard
        # Meanwhile it may have been retired, or reported by a reader: then it is looked after.
        if self._served(shard):
            held = self._held_by(shard)
            _log.error(
                "shard is corrupt: barred, and fetched again", shard=str(shard), why=why, by="scrub"
            )
            self._corrupt += 1
            self._feed(ShardVerified(shard, False, held))

    async def _finding(self, path: Path, pool: ThreadPoolExecutor) -> str:
        """What is wrong with the shard or its sidecar, "" if nothing is. OSError if one cannot be read."""
        loop = asyncio.get_running_loop()
        pieces = _read(path)
        try:
            while True:
                size = await loop.run_in_executor(pool, next, pieces, 0)
                if not size:
                    return ""
                self._bytes += size
                await self._throttle.take(size)
        except (CorruptRecordError, CorruptSidecarError) as error:
            return f"{error.path}: {error.why}"
        finally:
            with contextlib.suppress(ValueError):  # the thread is still in it: it ends with that
                pieces.close()

    def _shards(self) -> Iterator[ShardId]:
        for dataset in self._datasets.values():
            yield from (live.shard.id for live in dataset.live.values() if live.served)

    def _served(self, shard: ShardId) -> bool:
        live = self._datasets[shard.dataset].live.get(shard.number)
        return live is not None and live.served


def _read(path: Path) -> Generator[int, None, None]:
    """Reads shard and sidecar piece by piece; how many bytes each had.

    CorruptRecordError or CorruptSidecarError for the first thing that is wrong, OSError.
    """
    file, direct = _open(path)
    with file:
        size = os.fstat(file.fileno()).st_size
        scanner = FrameScanner(str(path), size, verify=True)
        piece = memoryview(mmap.mmap(-1, PIECE))  # aligned, as O_DIRECT wants it
        at = 0
        while at < size and (taken := file.readinto(piece)):
            scanner.feed(piece[:taken])
            if not direct:
                os.posix_fadvise(file.fileno(), at, taken, os.POSIX_FADV_DONTNEED)
            at += taken
            yield taken
    if found := disagreement(path, scanner.finish(), of_cache=True):
        raise CorruptSidecarError(str(found.path), found.why)
    yield Layout.sidecar(path).stat().st_size


def _open(path: Path) -> tuple[io.FileIO, bool]:
    """The file, and whether what is read of it comes past the page cache: not every file system can."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return io.FileIO(os.open(path, flags | os.O_DIRECT)), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return io.FileIO(os.open(path, flags)), False


def _pool() -> ThreadPoolExecutor:
    """One thread, after which the trainers' reads and threads go first."""
    return ThreadPoolExecutor(1, "scrub", initializer=_lower_priority)


def _lower_priority() -> None:
    with contextlib.suppress(OSError):  # a sandbox may refuse it
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    number = {"x86_64": 251, "aarch64": 30}.get(platform.machine())  # glibc has no ioprio_set
    if number is not None:
        best_effort, lowest = 2 << 13, 7
        ctypes.CDLL(None).syscall(number, 1, 0, best_effort | lowest)
