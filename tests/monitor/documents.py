"""Status documents: as a daemon makes them, from its own types."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from cachecd.daemon.status import (
    CacheStatus,
    DaemonStatus,
    DatasetStatus,
    LeaseStatus,
    ListingStatus,
    OlderStatus,
    SkippedReason,
    SkippedStatus,
    Status,
    TrainerStatus,
)
from cachecd.executors import ExecutorStatus
from cachecd.model import StageSeconds

GIB = 1 << 30
HOSTILE = '"><script>document.title = "owned"</script>\ud800'


def as_json(status: Status) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(asdict(status)))
    return document


def dataset(**values: Any) -> DatasetStatus:
    """An empty dataset, changed as given."""
    empty: dict[str, Any] = {
        "source_id": "s3://bucket/train/",
        "bytes_per_second": 0,
        "stopped": "",
        "stopped_for_s": 0.0,
        "rewritten_units": 0,
        "listing": ListingStatus(0, None, "", "", ""),
        "ingest": {},
        "from_next_generation": [],
        "generation": "0123456789abcdef",
        "pinned": False,
        "whole": False,
        "leasable": False,
        "shards": 0,
        "records": 0,
        "skipped_records": 0,
        "data_bytes": 0,
        "allocated": 0,
        "retired_shards": 0,
        "retired_bytes": 0,
        "quarantined_shards": 0,
        "evicted_shards": 0,
        "making": 0,
        "streams": 8,
        "open_streams": 0,
        "units": 0,
        "listed": False,
        "listings": 0,
        "coverage": 0.0,
        "passes": 0,
        "full": False,
        "first": GIB,
        "share": 100 * GIB,
        "epoch": "",
        "waits_for": "the first page of the listing",
        "rotation_waits": "",
        "held_back": "",
        "contradicted": False,
        "skipped": SkippedStatus(0, 0, {}),
        "older": [],
    }
    return DatasetStatus(**empty | values)


def status(**values: Any) -> dict[str, Any]:
    """An empty cache, changed as given."""
    empty: dict[str, Any] = {
        "cache": cache(),
        "datasets": {"train": dataset()},
        "unconfigured": [],
        "leases": [],
        "trainers": [],
        "complaints": {},
        "sampler": ExecutorStatus(2, 2, 0, ""),
        "daemon": DaemonStatus(4711, 3.0, 2, False, 8, 64 * GIB, 8 * GIB, 32, None),
    }
    return as_json(Status(**empty | values))


def cache(**values: Any) -> CacheStatus:
    empty: dict[str, Any] = {
        "limit": 100 * GIB,
        "used": 8192,
        "reserved": 0,
        "room": float(100 * GIB - 8192),
        "stopped": "",
        "resting": "",
        "dir": "/data/cachecd",
        "corrupt_shards": 0,
        "fetched_bytes": 0,
        "fetched_since_start": 0,
        "paused_s": {},
    }
    return CacheStatus(**empty | values)


def lease(name: str = "train.1", **values: Any) -> LeaseStatus:
    held: dict[str, Any] = {
        "lease": name,
        "dataset": "train",
        "generation": "0123456789abcdef",
        "job": "resnet",
        "epoch": 7,
        "records": 400_000,
        "skipped_records": 12,
        "held": True,
        "ranks": 2,
        "held_by": [0, 1],
        "age_s": 321.5,
        "retired_bytes": 3 * GIB,
    }
    return LeaseStatus(**held | values)


def trainer(**values: Any) -> TrainerStatus:
    one: dict[str, Any] = {
        "dataset": "train",
        "job": "resnet",
        "rank": 0,
        "pid": 100,
        "epoch": 7,
        "reader": "torch",
        "age_s": 0.4,
        "steps": 1000,
        "records": 256_000,
        "bytes": 40 * GIB,
        "waited_s": 30.0,
        "elsewhere_s": 270.0,
        "stages_s": {"read": 20.0, "decode": 10.0},
        "queue": 0.75,
        "wait_share": 0.1,
        "memory": 64 * GIB,
        "random_bytes": 30 * GIB,
        "reads_per_record": 2.5,
        "gil_s": 0.0,
        "first": False,
        "blind": "",
    }
    return TrainerStatus(**one | values)


INGEST = {
    "list": StageSeconds(1.5, 60.0, 0),
    "fetch": StageSeconds(120.0, 2400.0, 400_000),
    "decode": StageSeconds(900.0, 910.0, 400_000),
    "resize": StageSeconds(600.0, 610.0, 399_990),
    "encode": StageSeconds(50.0, 51.0, 399_990),
    "write": StageSeconds(30.0, 45.0, 399_990),
    "sync": StageSeconds(1.0, 25.0, 399_990),
}


def busy() -> dict[str, Any]:
    """A cache at its limit: two datasets, two jobs, one of which waits; texts that want to be HTML."""
    skips = {
        "cannot decode: image file is truncated": SkippedReason(
            11, 3, ["dog/0001.jpg", f"dog/{HOSTILE}.jpg"]
        ),
        f"label '{HOSTILE}' is unknown": SkippedReason(1, 0, ["secret/key.jpg"]),
    }
    train = dataset(
        bytes_per_second=183_000_000,
        listing=ListingStatus(1_281_167, 3600.0, "", "12 objects without bytes", ""),
        ingest=INGEST,
        shards=1500,
        records=400_000,
        skipped_records=12,
        data_bytes=92 * GIB,
        allocated=95 * GIB,
        retired_shards=48,
        retired_bytes=3 * GIB,
        quarantined_shards=1,
        evicted_shards=640,
        making=4,
        open_streams=8,
        units=1_281_167,
        listed=True,
        listings=2,
        coverage=0.61,
        passes=0,
        full=True,
        leasable=True,
        share=96 * GIB,
        epoch="an epoch reads 31 % of the source, and a quarter of it is new each time",
        waits_for="",
        rotation_waits="lease train.1 keeps 3.0 GiB",
        skipped=SkippedStatus(12, 3, skips),
        older=[OlderStatus("train", "fedcba9876543210", 2, 128 << 20, "")],
    )
    held_out = dataset(
        pinned=True,
        whole=True,
        leasable=True,
        listed=True,
        listings=2,
        shards=50,
        records=10_000,
        data_bytes=2 * GIB,
        allocated=2 * GIB,
        first=2 * GIB,
        share=2 * GIB,
        units=10_000,
        coverage=1.0,
        passes=1,
        waits_for="",
        source_id="s3://bucket/train/",
    )
    return status(
        cache=cache(
            used=97 * GIB,
            reserved=GIB,
            room=float(2 * GIB),
            fetched_bytes=412_000_000_000,
            fetched_since_start=1_000_000,
            corrupt_shards=1,
            paused_s={"throttled": 14.5, "bandwidth": 0.0, "room": 1800.0},
        ),
        datasets={"train": train, "train-eval": held_out},
        leases=[
            lease("train.1"),
            lease("train.2", job=f"tune {HOSTILE}", epoch=2, held_by=[0], age_s=40.0, ranks=1),
            lease("train-eval.1", dataset="train-eval", records=10_000, held=False, held_by=[]),
        ],
        trainers=[
            trainer(rank=1, pid=101, wait_share=0.42, queue=0.03, waited_s=126.0),
            trainer(),
            trainer(
                job=f"tune {HOSTILE}",
                epoch=2,
                pid=300,
                reader="tf_dataset",
                wait_share=0.01,
                queue=None,
                blind="TensorFlow does not show its queue",
            ),
        ],
        complaints={"writing state.json": "cannot write state.json: No space left on device"},
        sampler=ExecutorStatus(4, 4, 2, "killed: it used 4.2 GiB"),
        daemon=DaemonStatus(4711, 86_400.0, 4, False, 8, 64 * GIB, 8 * GIB, 32, None),
    )
