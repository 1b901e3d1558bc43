"""What an index of very many objects costs: `python -m tests.bench.listing --units 10_000_000`.

Prints JSON: seconds, bytes on disk, and the memory of the process (resident, and of that anonymous) in
each phase, less what it had before the first; then of a real daemon that starts with this index (and
`--offline`, as the store is synthetic, so that it is not what is measured).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cachecd.index import Index
from cachecd.indexing import Listing
from cachecd.indexroom import DatasetRoom, IndexRoom
from cachecd.ledger import Ledger
from cachecd.plan import Plan
from cachecd.preflight import listing_of

from cachecd.config import DatasetConfig, SourceConfig
from cachecd.model import Assignment, ObjectInfo, Outcome
from tests.e2e.daemons import ExecutedDaemon

SOURCE = {"url": "file:///synthetic", "format": "files"}
_PAGE = 1000
_SIZE = 110_000  # bytes of an object


class SyntheticStore:
    def __init__(self, units: int) -> None:
        self._units = units

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        begin = int(start_after[-13:-4]) + 1 if start_after else 0
        for start in range(begin, self._units, _PAGE):
            yield [
                ObjectInfo(f"{n // 5000:05d}/{n:09d}.jpg", _SIZE + n % 1000, f'"{n:032x}"')
                for n in range(start, min(start + _PAGE, self._units))
            ]


def resident() -> tuple[int, int]:
    """Bytes of this process in memory: all, and those that no file backs."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) << 10, int(status["RssAnon"].split()[0]) << 10


class Phases:
    """Measures phases one after the other: seconds, and the most memory beyond the beginning's."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self._before = resident()

    @contextmanager
    def phase(self, name: str) -> Iterator[dict[str, Any]]:
        figures: dict[str, Any] = {}
        peak = [0, 0]
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.02):
                for place, now in enumerate(resident()):
                    peak[place] = max(peak[place], now - self._before[place])

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        began = time.perf_counter()
        yield figures
        figures["seconds"] = round(time.perf_counter() - began, 3)
        done.set()
        watcher.join()
        after = [now - before for now, before in zip(resident(), self._before, strict=True)]
        figures["peak_rss"], figures["peak_anonymous"] = (
            max(peak[0], after[0]),
            max(peak[1], after[1]),
        )
        figures["rss_after"] = after[0]
        self.found[name] = figures
        sys.stderr.write(f"{name}: {figures}\n")


def opened(folder: Path) -> Index:
    dataset = DatasetConfig.model_validate({"source": SOURCE})
    index = folder / "cache" / "index"
    index.mkdir(parents=True, exist_ok=True)
    return Index.open(index, "train", listing_of(dataset))


def listed(index: Index, units: int, progressed: Callable[[], None]) -> None:
    room = DatasetRoom(IndexRoom(Ledger(1 << 50, 1), 0, lambda: None), "train")
    source = SourceConfig.model_validate(SOURCE)
    store: Any = SyntheticStore(units)
    asyncio.run(Listing(source, index, room, progressed).go_on(store.list))


def assigned(plan: Plan, shards: int) -> list[float]:
    """Plans, and finishes, this many shards; processor seconds of each."""
    took = []
    for _ in range(shards):
        began = time.thread_time()
        found = plan.assign()
        took.append(time.thread_time() - began)
        if not isinstance(found, Assignment):
            break
        size = sum(u.size for u in found.units)
        outcome = Outcome(len(found.units), size, 0, size, size, 0.0)
        plan.finish(found.shard.number, outcome, [u.unit for u in found.units])
    return took


def measure(units: int, folder: Path) -> dict[str, dict[str, Any]]:
    phases = Phases()
    index = opened(folder)
    firsts: list[float] = []
    with phases.phase("listing, sampled meanwhile") as figures:
        plan = Plan("train", "g", index, 17, 64 << 20)
        began = time.perf_counter()

        def progressed() -> None:
            plan.extend(complete=False)
            assigned(plan, 10)
            firsts.append(time.perf_counter() - began)

        listed(index, units, progressed)
        plan.extend()
    figures["first_assignment_after_s"] = round(firsts[0], 4)
    figures["index_bytes"] = index.allocated
    figures["index_bytes_a_unit"] = round(index.allocated / units, 1)
    for name, shard_size in (("64 MiB shards", 64 << 20), ("shards of 4096 units", 1 << 30)):
        with phases.phase(f"planning, {name}") as figures:
            took = sorted(assigned(plan_of(index, shard_size), 100))
            figures["assign_median_cpu_ms"] = round(1000 * statistics.median(took), 2)
            figures["assign_p99_cpu_ms"] = round(1000 * took[int(0.99 * len(took))], 2)
    with phases.phase("restore of a plan with nearly all units held") as figures:
        plan = plan_of(index, 64 << 20)
        for start in range(0, units, 4096):
            numbers = np.arange(start, min(start + 4096, units))
            plan.hold(numbers[numbers % 1000 != 0])
    with phases.phase("planning where one unit in a thousand is free") as figures:
        took = sorted(assigned(plan, 5))
        figures["assign_median_cpu_ms"] = round(1000 * statistics.median(took), 2)
    index.close()
    with phases.phase("open"):
        index = opened(folder)
    with phases.phase("listing again, nothing new"):
        listed(index, units, lambda: None)
    index.close()
    return {**phases.found, "a daemon with this index": started(folder, units)}


def started(folder: Path, units: int) -> dict[str, Any]:
    """Of a daemon: seconds until it answers, and its resident memory then and at its greatest."""
    with ExecutedDaemon(folder, {"train": {"source": SOURCE}}) as daemon:
        began = time.perf_counter()
        daemon.start("--offline")
        seconds = time.perf_counter() - began
        assert daemon.status()["datasets"]["train"]["units"] == units
        status = Path(f"/proc/{daemon.pid}/status").read_text()
        lines = dict(line.split(":", 1) for line in status.splitlines())
        rss, peak = (int(lines[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM"))
    return {"seconds": round(seconds, 3), "rss": rss, "peak_rss": peak}


def plan_of(index: Index, shard_size: int) -> Plan:
    plan = Plan("train", "g", index, 17, shard_size)
    plan.extend()
    return plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=10_000_000)
    parser.add_argument("--dir", type=Path, help="where the index is kept meanwhile")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        sys.stdout.write(json.dumps(measure(arguments.units, Path(folder)), indent=2) + "\n")


if __name__ == "__main__":
    main()
