"""A loop whose own Python must not be held up by its data: hundreds of MB/s, and an idle GIL.

    DATA=file:///data/raw/ cachecd run situation_2_busy_loop.yaml -- python situation_2_busy_loop.py

With "tensorflow" as its argument it takes the batches as TensorFlow's tensors. Native threads read,
verify and stack batches ahead of the loop; `next()` hands over one that is ready and never lets the GIL
go. `seconds_waited` says whether the loop ever stood still.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np


def pixels(record: dict[str, Any]) -> dict[str, Any]:
    """The transform: raw bytes, as which TFRecord has them, to uint8 [512, 512, 3]: one dense tensor a
    batch, in place of a list of texts that TensorFlow would copy one by one."""
    return {**record, "image": np.frombuffer(record["image"], np.uint8).reshape(512, 512, 3)}


def main() -> None:
    from cachecd_client import connect

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
