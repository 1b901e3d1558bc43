"""Jobs as they come: ranks that share a lease, pinned data, an epoch without a daemon."""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter

import pytest

from cachecd_client.errors import AcquireTimeoutError
from tests.e2e.daemons import Daemon, file_source, said_line, trainer, wait_until
from tests.e2e.reading import keys_of

RANK = """
import json, sys, torch
from cachecd_client import connect
with connect() as cache:
    for epoch in cache.epochs("train", 2, timeout=30):
        loader = epoch.torch(32)
        keys, steps = [], 0
        for batch in loader:
            assert isinstance(batch["label"], torch.Tensor) and len(batch["label"]) == 32
            keys += [key.decode() for key in batch["key"]]
            steps += 1
        assert steps == len(loader)
        print(json.dumps({"files": epoch.files, "keys": keys, "steps": steps}), flush=True)
        sys.stdin.readline()
"""


def wait_for_growth(daemon: Daemon, beyond: int) -> None:
    """Waits until the cache has more than so many shards, and gets no more before the next epoch."""

    def grown() -> bool:
        train = daemon.train
        return train["shards"] > beyond and not train["making"]

    wait_until(grown, what=f"the cache has grown beyond {beyond} shards")


def test_two_torch_ranks_read_one_set_disjointly_in_equal_steps(daemon, train, objects):
    served = daemon({"train": train(grow={"first": "1MiB", "per_epoch": "1MiB"})}).start()
    first = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    second = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    with trainer(served, RANK, **first) as one, trainer(served, RANK, **second) as other:
        epochs = []
        for _ in range(2):
            epochs.append((said_line(one), said_line(other)))
            wait_for_growth(served, len(epochs[-1][0]["files"]))
            for rank in (one, other):
                print(file=rank.stdin, flush=True)
        assert one.wait(30) == other.wait(30) == 0
    for left, right in epochs:
        assert left["files"] == right["files"]
        assert left["steps"] == right["steps"] > 0
        both = Counter(left["keys"] + right["keys"])
        assert len(left["keys"]) == len(right["keys"]) == 32 * left["steps"]
        assert set(both.values()) == {1}
        assert both.keys() <= objects.keys()
    assert len(epochs[1][0]["files"]) > len(epochs[0][0]["files"])
    # Both have let go: nothing keeps a lease.
    wait_until(lambda: not served.status()["leases"])


def test_a_pinned_dataset_is_leased_only_when_whole_and_then_each_record_once(
    daemon, train, objects
):
    pinned = {key: body for key, body in objects.items() if key.startswith("class-3/")}
    source = {"url": "s3://spine/train/class-3/", "format": "files"}
    served = daemon(
        {"train": train(), "eval": {"source": source, "pin": True}}, sampler={"bandwidth": "3MB/s"}
    ).start()
    size = sum(map(len, pinned.values()))
    with served.connect() as cache:
        waited: list[int] = []
        while True:
            before = cache.status()["datasets"]
            try:
                epoch = cache.acquire("eval", timeout=0)
                break
            except AcquireTimeoutError:
                waited.append(before["eval"]["data_bytes"])
                assert before["train"]["data_bytes"] <= before["train"]["first"] + (1 << 20)
        assert max(waited) > size / 2, "it held most of it, and still would not lease it"
        assert epoch.num_records == len(pinned)
        keys, name = keys_of(epoch), epoch.fingerprint
        assert Counter(keys) == Counter(key.removeprefix("class-3/") for key in pinned)
    served.kill()
    with served.start().connect() as cache, cache.acquire("eval", timeout=30) as epoch:
        assert (keys_of(epoch), epoch.fingerprint) == (keys, name), "also after a restart"


def test_an_epoch_without_a_daemon_repeats_its_set_and_the_next_finds_the_new_daemon(
    daemon, train, caplog
):
    served = daemon({"train": train(grow={"first": "1MiB", "per_epoch": "1MiB"})}).start()
    caplog.set_level(logging.WARNING, "cachecd")
    sets: list[list[str]] = []
    orders: list[list[bytes]] = []
    with served.connect(timeout=1.0) as cache:
        for epoch in cache.epochs("train", 4, timeout=30):
            sets.append(epoch.files)
            orders.append([bytes(key) for batch in epoch.numpy(16) for key in batch["key"]])
            if epoch.epoch < 2:
                wait_for_growth(served, len(epoch.files))
            if epoch.epoch == 1:
                served.kill()
            elif epoch.epoch == 2:
                (line,) = [r.getMessage() for r in caplog.records if "repeats" in r.getMessage()]
                assert f"epoch 2 repeats the {len(epoch.files)} files of the epoch before" in line
                assert "no daemon answered" in line
                served.start()
    assert sets[1] == sets[2] != sets[0]
    assert orders[1] != orders[2], "in an order of its own"
    assert set(sets[2]) < set(sets[3])
    assert sum("repeats" in r.getMessage() for r in caplog.records) == 1


@pytest.mark.long
def test_a_limit_lowered_below_what_is_cached_is_reached_while_a_trainer_goes_on(daemon, train):
    """Which asks for the next set while it holds the last one."""
    served = daemon({"train": train(evict={"refresh": 0.5})}, limit="12MiB").start()
    lowered = 6 << 20

    def used() -> int:
        return served.status()["cache"]["used"]

    wait_until(lambda: used() > lowered + (2 << 20))
    with served.connect(timeout=20) as cache:
        for epoch in cache.epochs("train", 500, timeout=20):
            if not epoch.epoch:
                served.document["cache"]["limit"] = lowered
                served.write_config()
                os.kill(served.pid, signal.SIGHUP)
                wait_until(lambda: served.status()["cache"]["limit"] == lowered)
            elif used() <= lowered:
                break
    assert used() <= lowered


@pytest.mark.long
def test_reload_changes_the_number_of_workers_and_no_record_is_lost(daemon, train):
    served = daemon({"train": train()}, sampler={"workers": 1}).start()
    for workers in (3, 2):
        served.document["sampler"] |= {"workers": workers, "connections": 4 * workers}
        served.write_config()
        os.kill(served.pid, signal.SIGHUP)
        wait_until(lambda: served.status()["sampler"]["alive"] == workers)  # noqa: B023
        assert served.status()["sampler"]["restarts"] == 0
    served.until_whole()
    assert served.train["skipped"]["units"] == 0


def test_a_reload_that_comes_before_the_daemon_is_ready_does_not_end_it(daemon, tmp_path):
    served = daemon({"train": {"source": file_source(tmp_path / "source", {"a": b"a"})}})
    served.write_config()
    served._process = served._launch(())
    wait_until(served.cache.exists, what="it has begun")
    while "ready" not in served.said():
        os.kill(served.pid, signal.SIGHUP)
        assert served._process.poll() is None, served.said()
    assert served.train
