"""The daemon as a contender."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.measuring import cpu_seconds_of, descendants
from tests.e2e.daemons import ExecutedDaemon
from tests.stores import S3Server

PATIENCE = 300.0  # seconds


def ingest(
    folder: Path, server: S3Server, source: dict[str, Any], sampler: dict[str, Any]
) -> dict[str, float]:
    """Caches all of the source in `folder`, which is to be empty.

    What is measured begins when the source is listed, the samplers are warm and the first shards are
    sealed: then the daemon is told to take the rest. It ends as the last shard gets its name.
    """
    grow: dict[str, Any] = {"first": "1MiB", "per_epoch": "0"}
    train = {"source": source, "grow": grow}
    with (
        ExecutedDaemon(
            folder,
            {"train": train},
            server.environ,
            limit="40GiB",
            shard_size="64MiB",
            sampler=sampler,
        ) as daemon,
        daemon.start().connect() as cache,
    ):

        def status() -> dict[str, Any]:
            found: dict[str, Any] = cache.status()["datasets"]["train"]
            return found

        def until(condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            deadline = time.monotonic() + PATIENCE
            while not condition(found := status()):
                assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {found}"
                time.sleep(0.1)  # a status takes the daemon 2 ms
            return found

        before = until(lambda s: s["listed"] and s["shards"] and not s["making"])
        train["grow"] = {"first": "30GiB"}
        daemon.write_config()
        cpu, began = _cpu(daemon.pid), time.time()
        os.kill(daemon.pid, signal.SIGHUP)
        after = until(lambda s: s["whole"])
        return {
            "seconds": max(path.stat().st_mtime for path in folder.rglob("shards")) - began,
            "cpu_seconds": _cpu(daemon.pid) - cpu,
            "records": after["records"] - before["records"],
            "sampler_peak_mb": max(_peak_mb(pid) for pid in descendants(daemon.pid)),
        }


def _cpu(pid: int) -> float:
    return cpu_seconds_of([pid, *descendants(pid)])


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1000
    return 0.0
