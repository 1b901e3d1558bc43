"""One rank of a job that trains for ever: `python -m tests.soak.trainer FRAMEWORK JOB LOG`.

Every record it is given is compared with its object. A line of JSON an epoch goes to LOG, flushed, so
that a kill costs none. It ends after the epoch in which SIGTERM came.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cachecd_client import Epoch, connect
from cachecd_client.errors import AcquireTimeoutError, DaemonUnreachableError, LeaseLostError
from tests.soak.records import fault_of

Rows = Iterator[tuple[bytes, int, bytes]]


def of_core(loader: Any) -> Rows:
    for batch in loader:
        rows = zip(batch["key"], batch["label"], batch["payload"], batch["_valid"], strict=True)
        for key, label, payload, valid in rows:
            if bool(valid):
                yield bytes(key), int(label), bytes(payload)


def by_torch(epoch: Epoch, report: dict[str, Any]) -> Rows:
    loader = epoch.torch(32, pad_last=True)
    yield from of_core(loader)
    report["corrupt"] += len(loader.corrupt)


def by_tensorflow(epoch: Epoch, report: dict[str, Any]) -> Rows:
    """By the core and by stock TensorFlow, in turn; the latter stops where it meets damage."""
    import tensorflow as tf

    if epoch.epoch % 2 == 0 or epoch.pinned:
        loader = epoch.tf(32, pad_last=True)
        for batch in loader:
            real = batch["_valid"].numpy()
            columns = (batch[name] for name in ("key", "label", "payload"))
            for *row, valid in zip(*(column.numpy() for column in columns), real, strict=True):
                if valid:
                    yield bytes(row[0]), int(row[1]), bytes(row[2])
        report["corrupt"] += len(loader.corrupt)
        return
    try:
        for batch in epoch.tf_dataset(32, drop_last=False):
            yield from zip(
                batch["key"].numpy(), batch["label"].numpy(), batch["payload"].numpy(), strict=True
            )
    except tf.errors.DataLossError:
        report["corrupt"] += 1
        report["cut_short"] = True


PAUSES = {"fast": 0.3, "steady": 0.7, "slow": 3.0}  # seconds between two epochs of a job

READERS: dict[str, Callable[[Epoch, dict[str, Any]], Rows]] = {
    "torch": by_torch,
    "tensorflow": by_tensorflow,
}


def judge(epoch: Epoch, read: Callable[[Epoch, dict[str, Any]], Rows]) -> dict[str, Any]:
    """Reads the epoch; what came of it, and everything that is wrong with it."""
    report: dict[str, Any] = {"epoch": epoch.epoch, "set": epoch.fingerprint, "corrupt": 0}
    wrong: list[str] = []
    seen: Counter[bytes] = Counter()
    for key, label, payload in read(epoch, report):
        seen[key] += 1
        if fault := fault_of(key, label, payload):
            wrong.append(fault)
    # Each corrupt record is replaced by another one of the set, which so comes twice.
    twice = sum(seen.values()) - len(seen)
    if twice > report["corrupt"]:
        wrong.append(f"{twice} records came again, {report['corrupt']} were corrupt")
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    expected = epoch.num_records // ranks
    if not report.get("cut_short") and sum(seen.values()) < expected - report["corrupt"]:
        wrong.append(f"{sum(seen.values())} records of {expected}")
    return report | {"records": sum(seen.values()), "wrong": wrong[:10]}


def train(framework: str, job: str, log: Path) -> None:
    over = []
    signal.signal(signal.SIGTERM, lambda *_: over.append(True))
    read, alone = READERS[framework], "LOCAL_WORLD_SIZE" not in os.environ

    with log.open("a") as lines:

        def tell(**line: Any) -> None:
            lines.write(json.dumps({"at": time.time(), "pid": os.getpid(), **line}) + "\n")
            lines.flush()

        while not over:
            try:
                with connect() as cache:
                    for epoch in cache.epochs("train", 1 << 40, job=job, timeout=60):
                        tell(dataset="train", **judge(epoch, read))
                        if epoch.epoch % 4 == 3 and alone:
                            with cache.acquire("eval", epoch.epoch, job, timeout=60) as held:
                                tell(dataset="eval", **judge(held, read))
                        if over:
                            break
                        time.sleep(PAUSES[job])  # stands for the step's compute
            except (AcquireTimeoutError, DaemonUnreachableError, LeaseLostError) as error:
                tell(retry=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
