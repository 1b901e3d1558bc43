"""Runs that were killed, daemon and trainer, and go on: on the disk that they had, and on an empty one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import LABEL
from tests.e2e.daemons import Daemon, said_line, trainer
from tests.e2e.inventory import Found, inventory

BATCH = 8
SOURCE = {"source": {"url": "s3://spine/train/", "format": "files", "label": {"pattern": LABEL}}}

# Reads epochs up to some batch of one, saves its state, and waits to be killed.
TRAINER = """
import json, sys
from cachecd_client import connect
last, batches, path, batch_size, run = json.loads(sys.argv[1])
with connect(timeout=20) as cache:
    for epoch in cache.epochs("train", timeout=30, **run):
        loader = epoch.numpy(batch_size, features=["key"])
        for nth, batch in enumerate(loader, 1):
            if (epoch.epoch, nth) == (last, batches):
                json.dump(loader.state_dict(), open(path, "w"))
                print("[]", flush=True)
                sys.stdin.read()
"""


class Read:
    def __init__(self, epoch: Any, **place: int) -> None:
        self.epoch, self.fingerprint = epoch.epoch, epoch.fingerprint
        self.numbers = [int(Path(name).stem) for name in epoch.files]
        self.keys = []
        self.progress = []
        for batch in epoch.numpy(BATCH, features=["key"], **place):
            self.keys.append([bytes(key).decode() for key in batch["key"]])
            self.progress.append(epoch.progress)


def read(served: Daemon, **run: Any) -> list[Read]:
    with served.connect(timeout=20) as cache:
        return [Read(epoch) for epoch in cache.epochs("train", timeout=30, **run)]


def killed(served: Daemon, epoch: int, batches: int, **run: Any) -> dict[str, Any]:
    """The state of a run whose trainer was killed after so many batches of an epoch, and its daemon too."""
    path = served.folder / "state.json"
    asked = json.dumps([epoch, batches, str(path), BATCH, run])
    with trainer(served, TRAINER, asked) as process:
        said_line(process)
        process.kill()
    served.kill()
    return json.loads(path.read_text())


def keys_of(reads: list[Read]) -> list[list[str]]:
    return [keys for epoch in reads for keys in epoch.keys]


def test_after_kill_9_of_trainer_and_daemon_the_same_record_follows(daemon, train):
    grow = {"first": "1MiB", "per_epoch": "512KiB", "wait": True}  # every run has the same sets
    served: Daemon = daemon({"train": train(grow=grow)}).start()
    whole = read(served, n=3)
    state = killed(served, 1, 5, n=3)
    served.start()
    after = read(served, state=state, n=3)
    assert [one.epoch for one in after] == [1, 2]
    assert keys_of(after) == keys_of(whole)[len(whole[0].keys) + 5 :]
    assert after[0].fingerprint == whole[1].fingerprint
    assert after[0].progress == whole[1].progress[5:]


@dataclass
class Left:
    """What a run was to read of the set of a cache that has rotated, its state after five batches, and the
    shards, all of it gone but that. `before`: the units that had been cached when the set was leased."""

    whole: Read
    state: dict[str, Any]
    shards: dict[int, Found]
    before: set[int]


@pytest.fixture(scope="module")
def left(s3, objects, tmp_path_factory) -> Left:
    data = {**SOURCE, "grow": {"first": "256KiB"}, "evict": {"refresh": 0.5}}
    folder = tmp_path_factory.mktemp("left")
    before: set[int] = set()
    with Daemon(folder, {"train": data}, s3.environ, limit="4MiB") as served:
        served.start()
        with served.connect() as cache:
            for epoch in cache.epochs("train", 3, timeout=30):
                if epoch.epoch < 2:
                    served.settle()
                    before |= units_in(inventory(served.cache))
                    continue
                whole, loader = Read(epoch), epoch.numpy(BATCH, features=["key"])
                for _ in zip(range(5), loader, strict=False):
                    pass
                state = json.loads(json.dumps(loader.state_dict()))
                shards = inventory(served.cache)
    assert min(whole.numbers) > 2, "the head of the permutation is not in the set any more"
    kept = {n: shards[n] for n in whole.numbers}
    assert before - units_in(kept), "of what was cached before, some is gone"
    return Left(whole, state, kept, before | units_in(kept))


def units_in(shards: dict[int, Found]) -> set[int]:
    return {unit for shard in shards.values() for unit in shard.units.tolist()}


@pytest.fixture
def elsewhere(daemon, s3) -> Callable[..., Daemon]:
    """Another machine, whose daemon makes a shard or two, and then nothing but what it is asked for, unless
    it is to grow."""

    def make(grows: bool = False, **environ: str) -> Daemon:
        data = {**SOURCE, "grow": {"first": "256KiB", **({} if grows else {"per_epoch": 0})}}
        environ = {**s3.environ, **environ}
        return daemon({"train": data}, limit="4MiB", environ=environ).start()

    return make


def test_on_an_empty_disk_the_source_goes_on_from_the_place_of_the_state(left, elsewhere):
    served = elsewhere()
    (after,) = read(served, state=left.state, n=3)
    assert after.epoch == 2
    assert after.fingerprint != left.whole.fingerprint
    found = inventory(served.cache)
    new = {n: shard for n, shard in found.items() if n > max(left.whole.numbers)}
    assert found.keys() - new.keys() <= {1, 2}, "made before it was asked"
    assert new
    assert not left.before & units_in(new), "the head of the permutation is not gone over again"
