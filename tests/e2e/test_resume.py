"""Runs that were killed, daemon and trainer, and go on: on the disk that they had, and on an empty one."""

from __future__ import annotations

import json
from typing import Any

from cachecd.listing.permutation import BlockOrder
from tests.e2e.daemons import Daemon, file_source, said_line, trainer
from tests.e2e.inventory import generation

BATCH = 8

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
    def __init__(self, epoch: Any) -> None:
        self.epoch, self.fingerprint = epoch.epoch, epoch.fingerprint
        self.keys = []
        self.progress = []
        for batch in epoch.numpy(BATCH, features=["key"]):
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
    rest = keys_of(whole)[len(whole[0].keys) + 5 :]
    state = killed(served, 1, 5, n=3)
    served.start()
    after = read(served, state=state, n=3)
    assert [one.epoch for one in after] == [1, 2]
    assert keys_of(after) == rest
    assert after[0].fingerprint == whole[1].fingerprint
    assert after[0].progress == whole[1].progress[5:]


def test_on_an_empty_disk_the_source_goes_on_from_the_place_of_the_state(daemon, tmp_path):
    """If the trainer asks before the daemon has sealed a shard."""
    objects = {f"{n:03d}": b"%03d" % n * 5000 for n in range(240)}
    data = {"source": file_source(tmp_path / "source", objects)}
    data |= {"grow": {"first": "256KiB"}, "evict": {"refresh": 0.5}, "streams": 2}
    sizes = {"limit": "2MiB", "shard_size": "64KiB"}
    left = daemon({"train": data}, "left", **sizes).start()
    with left.connect() as cache:
        for epoch in cache.epochs("train", 3, timeout=30):
            left.settle()
            loader = epoch.numpy(BATCH, features=["key"])
            for _ in loader if epoch.epoch < 2 else zip(range(5), loader, strict=False):
                pass
        state = json.loads(json.dumps(loader.state_dict()))
    (leased,) = state["run"]["sets"]
    assert 0 < leased["place"] < len(objects)
    left.kill()
    data |= {"grow": {"first": "128KiB"}}
    there = daemon({"train": data}, "there", **sizes, sampler={"bandwidth": "20kB/s"}).start()
    (after,) = read(there, state=state, n=3)
    assert after.epoch == 2
    assert after.fingerprint != leased["fingerprint"]
    place, cached = leased["place"], set(map(int, (key for keys in after.keys for key in keys)))
    known = json.loads((generation(there.cache) / "generation.json").read_text())
    assert (known["seed"], known["shape"]["S"]) == (leased["sampling_seed"], leased["streams"])
    block = BlockOrder(known["seed"], 0, [len(objects)])
    assert cached <= {block.unit(g) for g in range(place, len(objects))}, "the rest of the pass"
