"""Objects that are larger than a shard, and a shard with the middle of one rots."""

from __future__ import annotations

import random
from pathlib import Path

from cachecd_client._core import encode_example
from tests.core.shards import flip, frames
from tests.e2e.daemons import Daemon, file_source, wait_until

RECORDS = 60  # an object


def test_a_pinned_set_that_lost_the_middle_of_an_object_is_leased_again_when_that_is_there(
    tmp_path: Path,
):
    chance = random.Random(7)
    meant = {n: chance.randbytes(6000) for n in range(2 * RECORDS)}
    encoded = [encode_example({"n": n, "x": x}) for n, x in meant.items()]
    halves = {"0": frames(encoded[:RECORDS]), "1": frames(encoded[RECORDS:])}
    source = {**file_source(tmp_path / "source", halves), "format": "tfrecord"}
    train = {"train": {"source": source, "pin": True}}
    with Daemon(tmp_path, train, shard_size="128KiB") as daemon:
        daemon.start()
        with daemon.connect() as cache:
            with cache.acquire("train", job="before", timeout=30) as epoch:
                shards = [Path(file) for file in epoch.files]
            assert len(shards) >= 6
            for shard in (shards[1], shards[0], shards[-1]):
                flip(shard, 5000)
                assert daemon.verify() == 1
                wait_until(lambda gone=shard: not gone.exists(), what="it is fetched again")
            with cache.acquire("train", job="after", timeout=30) as epoch:
                batches = list(epoch.numpy(16, drop_last=False))
        rows = (row for batch in batches for row in zip(batch["n"], batch["x"], strict=True))
        found = [(int(n), bytes(x)) for n, x in rows]
    assert sorted(found) == sorted(meant.items())
