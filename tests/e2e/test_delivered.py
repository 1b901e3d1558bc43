"""Shards go when trainers were given their records, and not because a lease named them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cachecd_client import connect
from cachecd_client.session import Cache
from tests.e2e.daemons import Daemon, file_source, said_line, trainer, wait_until

FILES = 400
SIZES = {"limit": "6MiB", "shard_size": "64KiB"}


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
        "grow": {"first": "512KiB"},
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


def keys_of(batches: Any, most: int = 10**9) -> set[bytes]:
    return {
        bytes(key) for _, batch in zip(range(most), batches, strict=False) for key in batch["key"]
    }


def test_with_few_steps_an_epoch_no_record_leaves_the_cache_before_it_was_delivered(full: Daemon):
    was_there: set[bytes] = set()
    delivered: set[bytes] = set()
    gone = []
    with full.connect() as cache:
        for epoch in cache.epochs("train", 24, steps_per_epoch=5):
            here = keys_of(cache_files(epoch))
            assert was_there - here <= delivered, "it left the cache, and nobody was given it"
            was_there |= here
            delivered |= keys_of(epoch.numpy(4))
            gone.append(evicted(full))
            unread = 20 * (epoch.epoch + 1) <= len(here)
            assert not unread or gone[-1] == 0, (
                "a set of which a part is read each time is not used up"
            )
    assert gone[-1] > 0, "but in the end it is"
    assert 0 < full.train["coverage"] < 1


def cache_files(epoch: Any) -> Any:
    """All records of its files, by a reader that the daemon does not hear of."""
    from cachecd_client import FileSet

    return FileSet(list(epoch.files)).numpy(64, shuffle=False, drop_last=False)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_passes_that_are_broken_off_add_up(full: Daemon, share: float):
    needed = round(1 / share)
    with full.connect() as cache:
        for epoch in cache.epochs("train", needed + 2):
            if epoch.epoch > needed:
                break
            wait_until(lambda: full.train["retired_shards"] == 0, what="what was retired is gone")
            assert (evicted(full) > 0) == (epoch.epoch == needed)
            loader = epoch.numpy(8)
            keys_of(loader, -(-len(loader) // needed))


def test_files_stay_leased_while_tensorflow_reads_a_cache_that_rotates(full: Daemon):
    at_first, sets, seen = evicted(full), set(), set()
    with connect(full.endpoint) as cache:
        for batch in cache.tf_dataset("train", 4, features=["key"], shuffle=False):
            before = leased_shards(cache)
            opened = {int(Path(path).stem) for path in open_shards(full.cache)}
            assert opened <= before | leased_shards(cache)  # a set may be taken meanwhile
            seen |= opened
            assert len(batch["key"]) == 4
            sets.add(cache.report("train")["epoch"])
            if seen and len(sets) > 3 and evicted(full) > at_first:
                break


def leased_shards(cache: Cache) -> set[int]:
    return {number for held in list(cache._held) for number in held.manifest.numbers()}


def open_shards(cache: Path) -> list[str]:
    """The shards that this process has open; a deleted one ends in " (deleted)"."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.startswith(str(cache)) and "/shards/" in path]


def test_who_reads_the_files_by_their_names_has_read_all_when_it_lets_go(full: Daemon):
    for number in range(3):
        with full.connect() as cache, cache.acquire("train", number, timeout=30) as epoch:
            assert epoch.files
        wait_until(lambda: not full.status()["leases"], what="it has let go")
        settled(full)
    assert evicted(full) > 0


def test_what_was_delivered_before_a_restart_counts_after_it(full: Daemon):
    with full.connect() as cache, cache.acquire("train", 0, timeout=30) as epoch:
        keys_of(epoch.numpy(8))
    settled(full)
    assert evicted(full) == 0, "nothing is replaced before the next epoch begins"
    full.kill()
    full.start()
    settled(full)
    with full.connect() as cache, cache.acquire("train", 1, timeout=30):
        pass
    wait_until(lambda: evicted(full) > 0, what="the oldest shards make room")
    settled(full)


def test_a_trainer_that_dies_has_been_given_nothing_that_it_did_not_say(full: Daemon):
    with trainer(full, READS_ONE_BATCH) as process:
        said_line(process)
    assert_nothing_goes(full)


READS_ONE_BATCH = """
import json, sys
from cachecd_client import connect
cache = connect(timeout=20)
epoch = cache.acquire("train", 0, timeout=30)
next(iter(epoch.numpy(8)))
print(json.dumps(1), flush=True)
sys.stdin.readline()
"""


def test_a_process_that_ends_without_a_release_counts_as_what_it_was_given(full: Daemon):
    with trainer(full, READS_ONE_BATCH) as process:
        process.communicate("\n", 60)
        assert process.returncode == 0
    assert_nothing_goes(full)


def test_where_rank_0_is_killed_what_other_ranks_let_go_of_counts_as_nothing(full: Daemon):
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
    assert_nothing_goes(full)


def assert_nothing_goes(full: Daemon) -> None:
    """Of what was leased before: shards that nobody read stay when the next epochs begin."""
    wait_until(lambda: not full.status()["leases"], what="its lease has ended")
    with full.connect() as cache:
        for number in (1, 2):
            with cache.acquire("train", number, timeout=30) as epoch:
                keys_of(epoch.numpy(8), 2)
    settled(full)
    assert evicted(full) == 0
