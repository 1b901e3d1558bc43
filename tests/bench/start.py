"""What a start costs with very many shards: `python -m tests.bench.start --shards 100_000`.

Prints JSON, seconds: from the first operation under cache.dir to the first grant, with a snapshot
(median of five) and without one; the floor of the same run, which lists the directory of shards, looks at
each file once, and parses the snapshot; and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cachecd.config import load
from cachecd.daemon.loop import CacheLoop
from cachecd.daemon.rules import limit_of
from cachecd.daemon.workers import executor_of, lister_of
from cachecd.disk.snapshot import read_snapshot
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from tests.bench.cachedir import DATASET, CacheFolder, make


def floor(cache: CacheFolder) -> float:
    began = time.perf_counter()
    layout = cache.generation
    with os.scandir(layout.shards) as entries:
        for entry in entries:
            entry.stat(follow_symlinks=False)
    read_snapshot(layout.snapshot)
    return time.perf_counter() - began


async def first_grant(cache: CacheFolder) -> float:
    """Seconds of a start up to its first grant. The end writes the snapshot."""
    config = load(cache.config)
    executor, lister = executor_of(config, offline=True), lister_of(config)
    granted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    limit = limit_of(config)
    began = time.perf_counter()
    loop = CacheLoop(
        config, limit, executor, lambda name: iter(()), granted.set_result, offline=True
    )
    await loop.open()
    loop.feed(ev.AcquireAsked("a", DATASET, "job", 0))
    reply = await granted
    seconds = time.perf_counter() - began
    assert isinstance(reply, do.ReplyGranted), reply
    lister.close()
    await loop.close()
    for manifest in cache.layout.leases.iterdir():
        manifest.unlink()
    return seconds


def measure(folder: Path, shards: int) -> dict[str, Any]:
    cache = make(folder, shards)
    without = asyncio.run(first_grant(cache))
    pairs = [(floor(cache), asyncio.run(first_grant(cache))) for _ in range(5)]
    floors, starts = zip(*pairs, strict=True)
    ratios = [start / least for least, start in pairs]
    return {
        "shards": shards,
        "without snapshot": without,
        "with snapshot": statistics.median(starts),
        "floor": statistics.median(floors),
        "ratio": [statistics.median(ratios), min(ratios), max(ratios)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=lambda text: int(text.replace("_", "")), default=100_000)
    parser.add_argument("--dir", type=Path, default=Path(), help="where the cache is made")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        json.dump(measure(Path(folder), options.shards), sys.stdout, indent=2)
    print()  # noqa: T201


if __name__ == "__main__":
    main()
