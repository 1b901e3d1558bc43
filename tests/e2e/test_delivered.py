"""As much is retired as trainers were given, and nothing because a lease named it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemons import Daemon, file_source, said_line, trainer, wait_until

FILES = 330
SIZES = {"limit": "3MiB", "shard_size": "64KiB"}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source, and a cache at its limit that holds a part of it."""
    folder = tmp_path_factory.mktemp("delivered")
    file_source(folder / "source", {f"{n:04d}": b"%04d" % n * 4096 for n in range(FILES)})
    with Daemon(folder, datasets(folder), **SIZES) as served:
        settled(served.start())
        assert served.train["passes"] == 0
        served.terminate()
    return folder


@pytest.fixture
def full(daemon: Callable[..., Daemon], filled: Path) -> Daemon:
    served = daemon(datasets(filled), **SIZES)
    shutil.copytree(filled / "cache", served.cache)
    settled(served.start())
    return served


def datasets(folder: Path) -> dict[str, Any]:
    train = {
        "source": {"url": f"file://{folder / 'source'}", "format": "files"},
        "grow": {"first": "256KiB"},
        "evict": {"refresh": 0.5},
    }
    return {"train": train}


def settled(served: Daemon) -> None:
    def at_rest() -> bool:
        train = served.train
        return not (train["making"] or train["retired_shards"]) and train["shards"] > 8

    wait_until(at_rest, what="the cache is at its limit")


def evicted(served: Daemon) -> int:
    return int(served.train["evicted_shards"])


RECORD = 4 * 4096  # bytes of a payload


def evicted_bytes(served: Daemon) -> int:
    """At least: the payloads of shards that were retired."""
    return evicted(served) * 3 * RECORD


def test_with_few_steps_an_epoch_no_more_is_retired_than_was_delivered(full: Daemon):
    before, delivered, gone = evicted_bytes(full), 0, []
    with full.connect() as cache:
        for epoch in cache.epochs("train", 12, steps_per_epoch=1):
            assert gone == [] or gone[-1] <= delivered, "nobody was given what left the cache"
            records = sum(len(batch["key"]) for batch in epoch.numpy(2))
            delivered += records * RECORD * 1.1
            settled(full)
            gone.append(evicted_bytes(full) - before)
    assert gone[0] == 0
    assert gone[-1] > 0, "two records an epoch come to a shard in the end"
    assert 0 < full.train["coverage"] < 1


def test_who_reads_the_files_by_their_names_has_read_all_when_it_lets_go(full: Daemon):
    for number in range(3):
        with full.connect() as cache, cache.acquire("train", number, timeout=30) as epoch:
            assert epoch.files
        wait_until(lambda: not full.status()["leases"], what="it has let go")
        settled(full)
    assert evicted(full) > 0


BATCH = 8
READS_ONE_BATCH = """
import json, sys
from cachecd_client import connect
cache = connect(timeout=20)
epoch = cache.acquire("train", 0, timeout=30)
next(iter(epoch.numpy(8)))
print(json.dumps(1), flush=True)
sys.stdin.readline()
"""


def test_a_rank_that_is_killed_reports_nothing_and_the_others_report_their_part(full: Daemon):
    ranks = [{"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"} for rank in (0, 1)]
    with (
        trainer(full, READS_ONE_BATCH, **ranks[0]) as killed,
        trainer(full, READS_ONE_BATCH, **ranks[1]) as other,
    ):
        for process in (killed, other):
            said_line(process)
        killed.kill()
        other.communicate("\n", 60)
        assert other.returncode == 0
    wait_until(lambda: not full.status()["leases"], what="its lease has ended")
    before = evicted_bytes(full)
    with full.connect() as cache:  # without reading
        for number in (1, 2):
            with cache.acquire("train", number, timeout=30) as epoch:
                epoch.numpy(8)
    settled(full)
    assert 0 < evicted_bytes(full) - before <= BATCH * RECORD
