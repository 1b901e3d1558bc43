"""A cache, and a trainer that acquires one epoch after the other, in one process."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cachecd.config import Config
from cachecd.daemon.loop import CacheLoop
from cachecd.daemon.status import DaemonStatus
from cachecd.disk.layout import Layout
from cachecd.executors import ExecutorStatus
from cachecd.executors.lister import ProcessLister
from cachecd.executors.local import LocalExecutor
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.sampler.messages import Grant, Setup
from cachecd_client.protocol import decode_manifest, shard_number
from tests.daemon.workers import InProcess

READ_LOCK = struct.pack("@hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)


def config(root: Path, limit: int, shard_size: int, **dataset: Any) -> Config:
    source = {"url": f"file://{root}/src", "format": "webdataset"}
    return Config.model_validate(
        {
            "version": 1,
            "cache": {"dir": str(root / "cache"), "limit": limit, "shard_size": shard_size},
            "datasets": {
                "train": {
                    "source": source,
                    "grow": {"first": shard_size},
                    "evict": {"refresh": 0.5},
                }
                | dataset
            },
        }
    )


class Life:
    """A cache with a trainer in one process. `workers`: how many processes make shards; none: a worker in
    this process does."""

    def __init__(self, given: Config, workers: int = 0) -> None:
        self.config, self.workers = given, workers
        self.defects: list[Any] = []
        self.dir = given.cache.dir
        self.locks: dict[str, int] = {}
        self.epoch = 0

    async def __aenter__(self) -> Life:
        self.epoch = len(os.listdir(self.dir / "leases")) if self.dir.exists() else 0
        datasets = {n: d.model_dump(mode="json") for n, d in self.config.datasets.items()}
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: self.defects.append(context)
        )
        layout = Layout(self.dir)

        def path_of(grant: Grant) -> Path:
            shards = layout.generation(grant.stream.dataset, grant.stream.generation)
            return shards.temporary(grant.number, grant.version)

        self.executor: Any = (
            LocalExecutor(Setup(datasets, 8, None), self.workers, None, path_of)
            if self.workers
            else InProcess(datasets, path_of)
        )
        limit = self.config.cache.limit
        assert isinstance(limit, int)
        self.loop = CacheLoop(self.config, limit, self.executor, ProcessLister(4))
        await self.loop.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.executor.close(5)
        await self.loop.close()
        assert self.defects == []
        for fd in self.locks.values():
            os.close(fd)

    def status(self) -> dict[str, Any]:
        """The status document."""
        sampler = ExecutorStatus(1, 1, 0, "")
        return asdict(
            self.loop.status(
                sampler, DaemonStatus(1, 0.0, 1, False, 2, 1 << 30, 1 << 28, 32, None), []
            )
        )

    async def ask(self, event: Any) -> Any:
        replied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.loop.request(event, replied.set_result)
        return await asyncio.wait_for(replied, 20)

    async def acquire(self) -> str:
        """Acquires the next epoch, holds it and releases the last one. Returns the lease, "" if there is
        none yet."""
        reply = await self.ask(ev.AcquireAsked("a", "train", "job", self.epoch))
        if not isinstance(reply, do.ReplyGranted):
            assert isinstance(reply, do.ReplyWaiting), reply
            return ""
        fd = os.open(self.dir / "leases" / f"{reply.lease}.json", os.O_RDONLY)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, READ_LOCK)
        assert isinstance(await self.ask(ev.RankHolds("h", reply.lease, 0)), do.ReplyDone)
        self.loop.feed(ev.Delivered(reply.lease, 1.0))
        for lease in list(self.locks):
            os.close(self.locks.pop(lease))
            self.loop.feed(ev.LeaseUnheld(lease))
        self.locks[reply.lease] = fd
        self.epoch += 1
        return reply.lease

    def shards(self, lease: str) -> list[Path]:
        """The files that a lease names."""
        manifest = decode_manifest((self.dir / "leases" / f"{lease}.json").read_bytes())
        folder = self.dir / "datasets" / manifest.dataset / manifest.generation / "shards"
        versions = dict(map(tuple, manifest.versions))
        numbers = [
            shard_number(manifest.streams, stream, j)
            for stream, first, last in manifest.intervals
            for j in range(first, last + 1)
        ]
        names = [f"{n:010d}.{versions[n]}" if n in versions else f"{n:010d}" for n in numbers]
        return [folder / f"{name}.tfrecord" for name in names]
