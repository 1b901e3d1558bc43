"""What a listing of very many units costs: `python -m tests.bench.listing_table --units 10_000_000`.

Prints JSON: for the first listing, for a later one that changes nothing, and for pages of units that are
fed: seconds, units a second, bytes written, the most memory beyond the start's; and the size of the file.
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

from cachecd.listing.pages import units_of
from cachecd.listing.table import Table
from cachecd.listing.table_update import Listing
from cachecd.model import ObjectInfo, Shape

_PAGE = 1000
_SIZE = 110_000  # bytes of an object
_PAGES_FED = 500


async def synthetic(units: int, lanes: int) -> AsyncIterator[Sequence[ObjectInfo]]:
    """Pages of a bucket whose keys ascend, from `lanes` places of it in turn."""
    each = -(-units // lanes)
    for start in range(0, each, _PAGE):
        for lane in range(lanes):
            begin = lane * each + start
            end = min(begin + _PAGE, (lane + 1) * each, units)
            yield [
                ObjectInfo(f"{n // 5000:05d}/{n:09d}.jpg", _SIZE + n % 1000, f'"{n:032x}"')
                for n in range(begin, end)
            ]


def _status(name: str, field: str) -> int:
    lines = Path(f"/proc/self/{name}").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


@contextmanager
def measured(report: dict[str, Any], name: str, units: int) -> Iterator[None]:
    done, before, most = threading.Event(), _status("status", "VmRSS"), 0
    written = _status("io", "write_bytes")

    def watch() -> None:
        nonlocal most
        while not done.wait(0.1):
            most = max(most, _status("status", "VmRSS") - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    began = time.perf_counter()
    yield
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    report[name] = {
        "seconds": round(seconds, 2),
        "units_a_second": round(units / seconds),
        "written_mb": (_status("io", "write_bytes") - written) // 1_000_000,
        "memory_mb": most // 1000,
    }


def measure(folder: Path, units: int, lanes: int) -> dict[str, Any]:
    report: dict[str, Any] = {"units": units, "lanes": lanes}
    reserved: list[int] = []
    with ThreadPoolExecutor(1) as thread, measured(report, "source alone", units):
        asyncio.run(_read(synthetic(units, lanes)))
    with ThreadPoolExecutor(1) as thread:
        table = thread.submit(Table, folder / "listing.sqlite").result()
        for name in ("first listing", "later listing"):
            with measured(report, name, units):
                asyncio.run(Listing(table, thread, reserved.append).read(synthetic(units, lanes)))
        thread.submit(table.close).result()
        with measured(report, "open", 1):
            table = thread.submit(Table, folder / "listing.sqlite").result()
        shape = Shape(8, 32, 16, 1 << 26, 0)
        block = len(table.ends) - 1
        each = shape.units_in(0, block, table.ends)
        fed = range(0, each - 1024, max(1, each // _PAGES_FED))
        with measured(report, "feeding", 1024 * len(fed)):
            for place in fed:
                thread.submit(units_of, table, shape, 0, block, place).result()
        report["most_reserved_mb"] = max(reserved) // 1_000_000
        report["file_mb"] = table.allocated // 1_000_000
        thread.submit(table.close).result()
    return report


async def _read(pages: AsyncIterator[Sequence[ObjectInfo]]) -> None:
    async for _ in pages:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=lambda text: int(text.replace("_", "")), default=1_000_000)
    parser.add_argument("--lanes", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        json.dump(measure(Path(folder), chosen.units, chosen.lanes), sys.stdout, indent=2)
    print()  # noqa: T201


if __name__ == "__main__":
    main()
