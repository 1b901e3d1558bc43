"""A real daemon of three datasets that two ranks read as one mixture, and resume in its middle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemons import file_source, wait_until

SIZES = {"web": 600, "code": 200, "notes": 100}  # objects of 1 kB, some 55 of which fill a shard
WEIGHTS = {"web": 0.6, "code": 0.3, "notes": 0.1}


@pytest.fixture
def datasets(tmp_path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, count in SIZES.items():
        objects = {f"{n:03d}": f"{name} {n} ".encode() * 100 for n in range(count)}
        found[name] = {
            "source": file_source(tmp_path / "source" / name, objects),
            "grow": {"first": "64KiB", "per_epoch": "128KiB"},
        }
    found["notes"] = {**found["notes"], "pin": True}
    del found["notes"]["grow"]
    return found


def texts(loader: Any) -> list[bytes]:
    return [bytes(p) for batch in loader for p in batch["payload"]]


def of(name: str, found: list[bytes]) -> list[bytes]:
    return [text for text in found if text.startswith(name.encode())]


def test_ranks_share_a_mixture_of_sets_that_grow_and_resume_in_its_middle(
    daemon, datasets, monkeypatch
):
    one = daemon(datasets, shard_size="64KiB").start()
    ranks = []
    for rank in (0, 1):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        ranks.append(one.connect())
    runs = [
        cache.epochs(WEIGHTS, 4, job="mixed", steps_per_epoch=10, timeout=30) for cache in ranks
    ]
    sizes, every = [], []
    for epochs in zip(*runs, strict=True):
        first, second = epochs
        assert first.fingerprint == second.fingerprint
        loaders = [epoch.numpy(10, rank=rank, world=2) for rank, epoch in enumerate(epochs)]
        batches = iter(loaders[0])
        begun = texts([next(batches) for _ in range(4)])
        resumed = first.numpy(10, rank=0, world=2)
        resumed.load_state_dict(loaders[0].state_dict())
        read = begun + texts(resumed) + texts(loaders[1])
        assert len(read) == 200
        mixed = first.report()["mixed"]
        sizes.append({part["dataset"]: part["set_records"] for part in mixed})
        every += read
        one.settle()
    # What comes new comes first, of each dataset by itself, whatever the others have.
    for name in ("web", "code"):
        assert sizes[0][name] < sizes[3][name]
        times = Counter(of(name, every))
        assert set(times.values()) <= {1, 2, 3}
        assert len(times) >= 0.8 * sizes[3][name]
    assert {size["notes"] for size in sizes} == {100}
    notes = of("notes", every)
    assert max(Counter(notes).values()) == -(-len(notes) // 100)
    for name, weight in WEIGHTS.items():
        deviation = (len(every) * weight * (1 - weight)) ** 0.5
        assert abs(len(of(name, every)) - len(every) * weight) < 4 * deviation
    for cache in ranks:
        cache.close()
    wait_until(lambda: not one.status()["leases"], what="no lease is left")
