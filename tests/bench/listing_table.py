"""What a listing of very many units costs: `python -m tests.bench.listing_table --units 10_000_000`.

Prints JSON: for the first listing, and for a later one that changes nothing: seconds, and the most memory
beyond the start's; and the size of the file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cachecd.listing.table import Table
from cachecd.listing.table_update import Listing
from cachecd.model import ObjectInfo
from tests.bench.cachedir import any_room

_PAGE = 1000
_SIZE = 110_000  # bytes of an object


async def synthetic(units: int) -> AsyncIterator[Sequence[ObjectInfo]]:
    """Pages of a bucket whose keys ascend."""
    for begin in range(0, units, _PAGE):
        yield [
            ObjectInfo(f"{n // 5000:05d}/{n:09d}.jpg", _SIZE + n % 1000, f'"{n:032x}"')
            for n in range(begin, min(begin + _PAGE, units))
        ]


def _resident_kb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1])


@contextmanager
def measured(report: dict[str, Any], name: str) -> Iterator[None]:
    done, before, most = threading.Event(), _resident_kb(), 0

    def watch() -> None:
        nonlocal most
        while not done.wait(0.1):
            most = max(most, _resident_kb() - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    began = time.perf_counter()
    yield
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    report[name] = {
        "seconds": round(seconds, 2),
        "memory_mb": most // 1000,
    }


def measure(folder: Path, units: int) -> dict[str, Any]:
    report: dict[str, Any] = {"units": units}
    with ThreadPoolExecutor(1) as thread:
        table = thread.submit(Table, folder / "listing.sqlite").result()
        for name in ("first listing", "later listing"):
            with measured(report, name):
                listing = Listing(table, thread, any_room, lambda: 0)
                asyncio.run(listing.read(synthetic(units)))
        report["file_mb"] = table.allocated // 1_000_000
        thread.submit(table.close).result()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=lambda text: int(text.replace("_", "")), default=1_000_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        json.dump(measure(Path(folder), chosen.units), sys.stdout, indent=2)
    print()  # noqa: T201


if __name__ == "__main__":
    main()
