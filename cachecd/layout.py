"""Where everything lies under `cache.dir`. No other module joins these paths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cachecd.model import ShardId

SIDECAR_SUFFIX = ".idx"


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one cache directory.

        cachecd.lock             held by the one daemon; names it
        catalog.sqlite[-wal|-shm]
        excluded.jsonl           what a person took out, for when the catalog is lost
        shards/DATASET/NNNNNNNNNN.tfrecord[.idx]
        tmp/DATASET.NNNNNNNNNN.tfrecord[.idx]     being written; renamed into shards/
        leases/LEASE.json        one manifest a lease
        index/DATASET.*          the listing of a source

    Names come from dataset names (validated in the configuration) and numbers, never from a
    remote key.
    """

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / "cachecd.lock"

    @property
    def catalog(self) -> Path:
        return self.root / "catalog.sqlite"

    @property
    def shards(self) -> Path:
        return self.root / "shards"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def leases(self) -> Path:
        return self.root / "leases"

    @property
    def index(self) -> Path:
        return self.root / "index"

    def shard(self, shard: ShardId) -> Path:
        return self.shards / shard.dataset / self.name(shard.number)

    @staticmethod
    def name(number: int) -> str:
        """A shard's name in its dataset's folder."""
        return f"{number:010d}.tfrecord"

    def temporary(self, shard: ShardId) -> Path:
        return self.tmp / f"{shard.dataset}.{shard.number:010d}.tfrecord"

    def manifest(self, lease: str) -> Path:
        return self.leases / f"{lease}.json"

    def manifests(self, leases: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Each lease and the path of its manifest, as text: a Path takes as long to make as a probe."""
        folder = os.fspath(self.leases)
        for lease in leases:
            yield lease, f"{folder}/{lease}.json"

    @staticmethod
    def sidecar(path: Path) -> Path:
        return path.with_name(path.name + SIDECAR_SUFFIX)
