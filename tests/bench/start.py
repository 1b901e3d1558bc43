"""What a start costs with very many shards: `python -m tests.bench.start --shards 100_000`.

Prints JSON: seconds of `take_inventory` with a snapshot, median of five, and without one; of the floor of
the same run, which lists the directory, looks at each file once, and parses the snapshot; and their ratio.
The shards are hard links to a few.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cachecd.disk.durable import State
from cachecd.disk.layout import GenerationLayout
from cachecd.disk.snapshot import Row, read_snapshot, write_snapshot
from cachecd.disk.start import take_inventory
from tests.disk.shards import SHAPE, directory, make

_LINKS = 90_000  # shards that link to one of each stream


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def floor(layout: GenerationLayout) -> None:
    with os.scandir(layout.shards) as entries:
        for entry in entries:
            entry.stat(follow_symlinks=False)
    read_snapshot(layout.snapshot)


def measure(folder: Path, shards: int) -> dict[str, Any]:
    layout = directory(folder)
    for number in range(shards):
        original = number - number % _LINKS + number % (SHAPE.streams + 1)
        if number == original:
            make(layout, number)
        else:
            for path in (layout.shard, layout.sidecar):
                os.link(path(original), path(number))

    def start() -> None:
        assert len(take_inventory(layout, SHAPE, State(), ()).shards) == shards

    report = {"shards": shards, "without snapshot": seconds(start)}
    found = take_inventory(layout, SHAPE, State(), ())
    write_snapshot(layout.snapshot, [Row(*shard[:7]) for shard in found.shards])
    del found
    pairs = [(seconds(lambda: floor(layout)), seconds(start)) for _ in range(5)]
    report["floor"], report["with snapshot"] = (
        statistics.median(each) for each in zip(*pairs, strict=True)
    )
    report["ratio"] = report["with snapshot"] / report["floor"]
    tracemalloc.start()
    start()
    report["most_mb"] = tracemalloc.get_traced_memory()[1] // 1_000_000
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=lambda text: int(text.replace("_", "")), default=100_000)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        json.dump(measure(Path(folder), parser.parse_args().shards), sys.stdout, indent=2)
    print()  # noqa: T201


if __name__ == "__main__":
    main()
