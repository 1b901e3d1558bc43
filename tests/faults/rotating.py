"""A small cache at its limit whose shards come and go at every epoch, on a disk that can fail."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cachecd.disk.filesystem import walk
from cachecd_client.errors import AcquireTimeoutError
from cachecd_client.runs.epoch import Epoch
from cachecd_client.session.cache import Cache
from tests.e2e.daemons import Daemon, wait_until
from tests.e2e.inventory import generation, inventory, repeated

LIMIT = 4 << 20
SHARD = 64 << 10


def source_of(folder: Path, objects: int) -> None:
    """That many files of 4 to 20 kB in `folder`."""
    folder.mkdir()
    chance = random.Random(4)
    for number in range(objects):
        (folder / f"{number:05d}.bin").write_bytes(chance.randbytes(chance.randint(4000, 20000)))


def dataset_of(folder: Path) -> dict[str, Any]:
    source = {"url": f"file://{folder}", "format": "files"}
    return {"train": {"source": source, "grow": {"first": "256KiB"}}}


class Rotating:
    """A daemon, and a trainer that always holds a lease; `turn` is its next epoch.

    At the limit, an epoch retires shards; these go when the one before is released, and are refilled.
    """

    def __init__(self, daemon: Daemon, objects: Mapping[str, bytes], cache: Cache) -> None:
        self.daemon = daemon
        self.objects = objects
        self.cache = cache
        self.epoch = 0
        self.held: Epoch = cache.acquire("train", 0, job="job", timeout=30)

    @classmethod
    @contextmanager
    def started(
        cls,
        folder: Path,
        environ: Mapping[str, str],
        ready: Callable[[Rotating], object] = lambda rotating: rotating.idle(),
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> Iterator[Rotating]:
        """In an empty folder; yields when it is `ready`: at its limit. `settings`: see `starting`."""
        with cls.starting(folder, environ, settings) as daemon, daemon.connect() as cache:
            objects = {p.name: p.read_bytes() for p in (folder / "source").iterdir()}
            rotating = cls(daemon, objects, cache)
            wait_until(lambda: ready(rotating), 30, "the cache is full")
            yield rotating
            rotating.held.release()

    @staticmethod
    @contextmanager
    def starting(
        folder: Path, environ: Mapping[str, str], settings: Mapping[str, Any] = MappingProxyType({})
    ) -> Iterator[Daemon]:
        """The daemon, begun; `settings`: its own, "cache" (more keys of that section), "objects"."""
        folder.mkdir(exist_ok=True)
        more = {"limit": LIMIT, "shard_size": SHARD, **settings}
        cache, objects = more.pop("cache", {}), more.pop("objects", 600)
        source_of(folder / "source", objects)
        with Daemon(folder, dataset_of(folder / "source"), environ, **more) as daemon:
            daemon.document["cache"] |= cache
            yield daemon.start()

    # --- what it does

    def turn(self, timeout: float = 30.0) -> None:
        """Acquires the next epoch, then releases the last. AcquireTimeoutError."""
        following = self.cache.acquire("train", self.epoch + 1, job="job", timeout=timeout)
        self.held.release()
        self.held, self.epoch = following, self.epoch + 1

    def waits(self) -> str:
        """What the next epoch waits for; "" if it is granted."""
        try:
            self.turn(timeout=0.2)
        except AcquireTimeoutError as error:
            return str(error)
        return ""

    def repeats(self) -> bool:
        """Whether the next epoch has the lease of the last."""
        lease = self.held.lease
        self.turn()
        return self.held.lease == lease

    def rotates(self, what: str) -> None:
        """Epochs go on until new shards have come in the place of old ones, and all is quiet."""
        youngest = max(self.numbers())

        def rotated() -> bool:
            self.turn()
            return max(self.numbers()) > youngest

        wait_until(rotated, 70, f"{what}: ingest goes on by itself\n{self.tail()}")
        self.turn()
        wait_until(self.idle, 70, f"{what}: {self.status()}\n{self.tail()}")

    # --- what there is

    def status(self) -> dict[str, Any]:
        return self.cache.status()

    @property
    def stopped(self) -> str:
        return str(self.status()["cache"]["stopped"])

    def idle(self) -> bool:
        """Nothing is being made, nothing waits to be unlinked, nothing is wrong."""
        status = self.status()
        train = status["datasets"]["train"]
        busy = train["making"] or train["retired_shards"] or status["cache"]["reserved"]
        fits = not train["full"]
        wrong = status["cache"]["stopped"] or train["stopped"]
        return not (busy or fits or wrong)

    def numbers(self) -> list[int]:
        """Of the shards under their final names."""
        names = os.listdir(generation(self.daemon.cache) / "shards")
        return [int(name[:10]) for name in names if name.endswith(".tfrecord")]

    def tail(self) -> str:
        return self.daemon.said()[-3000:]

    def check(self, what: str) -> None:
        """At rest, nothing is half there, left over, twice or miscounted.

        The daemon measures its directory each second and may find room for one more shard just now: what
        it says before and after must be the same, or all is looked at again.
        """
        cache = self.daemon.cache
        looks: list[_Look] = []

        def looked() -> bool:
            before = self.status()
            looks.append(_Look(before, cache))
            return self.idle() and _figures(before) == _figures(self.status())

        wait_until(looked, 30, f"{what}: at rest\n{self.tail()}")
        looks[-1].check(what)
        for batch in self.held.numpy(64, pad_last=True):
            rows = zip(batch["key"], batch["payload"], batch["_valid"], strict=True)
            for key, payload in [row[:2] for row in rows if row[2]]:
                assert self.objects[bytes(key).decode()] == bytes(payload), what


def _figures(status: Mapping[str, Any]) -> list[Any]:
    """What changes when a shard is begun, made or unlinked, or a lease taken or dropped."""
    train, cache = status["datasets"]["train"], status["cache"]
    shards = [train[f"{kind}shards"] for kind in ("", "retired_", "quarantined_", "evicted_")]
    leases = [lease["lease"] for lease in status["leases"]]
    return [*shards, train["making"], train["allocated"], cache["reserved"], leases]


class _Look:
    def __init__(self, status: dict[str, Any], cache: Path) -> None:
        self.status = status
        self.shards = inventory(cache)
        shards = generation(cache) / "shards"
        self.names = sorted(os.listdir(shards))
        self.leases = {name for name in os.listdir(cache / "leases") if name.endswith(".json")}
        self.total = sum(walk(cache))
        self.blocks = {p.name: p.stat().st_blocks * 512 for p in shards.iterdir()}

    def check(self, what: str) -> None:
        status, train = self.status, self.status["datasets"]["train"]
        assert len(self.shards) == train["shards"] + train["retired_shards"], what
        assert not repeated(self.shards), what
        assert self.names == sorted(
            f"{number:010d}.tfrecord{suffix}" for number in self.shards for suffix in ("", ".idx")
        ), what
        assert self.leases == {f"{lease['lease']}.json" for lease in status["leases"]}, what
        assert self.total <= status["cache"]["limit"], what
        assert sum(self.blocks.values()) == train["allocated"], (what, self.blocks)
