"""Measures the files under cache.dir that the policy does not count one by one, and the free space."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from cachecd.disk import filesystem
from cachecd.disk.filesystem import block_bytes
from cachecd.disk.inventory import foreign_directories, shard_files
from cachecd.disk.layout import MARKS, Layout
from cachecd.policy import events as ev
from cachecd.policy.generation import Generation
from cachecd.policy.values import GenerationId

_SLACK = 256 << 10  # bytes by which small files may grow between two measurements
_PIECE = 4096  # files that are measured without a pause
_INODES_KEPT = 256  # for leases and small files, or less on a small file system


def measure(layout: Layout, fetched: int, reserve_free: int, foreign: int) -> ev.Measured:
    """Measures everything under cache.dir except shards, and the free space of the file system beyond
    `reserve_free`. Adds `foreign` (see Start). DiskError."""
    with filesystem.refusing(f"cannot measure {layout.root}"):
        other = foreign + sum(map(_flat, layout.directories()))
        twice = block_bytes(layout.history)  # the only file that may be larger than the slack
        other += sum(block_bytes(layout.generation(*name).shards) for name in layout.generations())
    total, free = filesystem.inodes(layout.root)
    spare_files = float(free - min(_INODES_KEPT, total // 16)) if total else float("inf")
    spare = filesystem.free_bytes(layout.root) - reserve_free
    return ev.Measured(other, _SLACK, spare, spare_files, fetched, twice=twice)


def _flat(folder: Path) -> int:
    """Returns the allocated bytes of a directory and of the files in it, without subdirectories."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        files = [entry for entry in entries if not entry.is_dir(follow_symlinks=False)]
        return block_bytes(folder) + sum(map(block_bytes, files))
    return 0


async def weigh_foreign(layout: Layout, known: Mapping[GenerationId, Generation]) -> int:
    """Returns the bytes under cache.dir that neither `measure` nor the policy counts. Works in pieces, so
    that the daemon can stop between them. `known`: the generations of the policy. DiskError."""
    weighed = 0
    pieces = foreign_directories(layout)
    while sizes := await asyncio.to_thread(list, islice(pieces, _PIECE)):
        weighed += sum(sizes)
    for name in await asyncio.to_thread(lambda: list(layout.generations())):
        counts, generation = known.get(GenerationId(*name)), layout.generation(*name)
        files = shard_files(generation) if generation.shards.exists() else iter(())
        while piece := await asyncio.to_thread(list, islice(files, _PIECE)):
            for path, file, size in piece:
                counted = counts and file and file.kind not in MARKS and counts.knows(*file[:2])
                weighed += size if not counted and os.path.lexists(path) else 0
    return weighed
