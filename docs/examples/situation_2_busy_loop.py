"""A loop whose own Python must not be held up by its data: hundreds of MB/s, and an idle GIL.

    CACHECD_ENDPOINT=... python situation_2_busy_loop.py [torch|tensorflow]

Native threads read, verify and stack batches ahead of the loop; `next()` hands over one that is ready
and never lets the GIL go. `seconds_waited` says whether the loop ever stood still.
"""

from __future__ import annotations

import sys
import time

from cachecd_client import connect


def main() -> None:
    in_torch = sys.argv[1:] != ["tensorflow"]
    with connect() as cache:
        for epoch in cache.epochs("train", 10):
            began, python = time.perf_counter(), 0.0
            loader = epoch.torch(32) if in_torch else epoch.tf(32)
            for _ in loader:
                started = time.perf_counter()
                sum(range(1_000_000))  # the loop's own Python: logging, augmentation, bookkeeping
                python += time.perf_counter() - started
            seconds = time.perf_counter() - began
            print(
                f"epoch {epoch.epoch}: {loader.bytes_read / seconds / 1e6:.0f} MB/s, "
                f"{python:.2f} of {seconds:.2f} s in Python, {loader.seconds_waited:.3f} s waited"
            )


if __name__ == "__main__":
    main()
