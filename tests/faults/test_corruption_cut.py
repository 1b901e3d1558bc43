"""Objects that are larger than a shard, and a shard with the middle of one rots."""

from __future__ import annotations

import random
from pathlib import Path

from cachecd_client._core import encode_example
from tests.core.shards import flip
from tests.e2e.daemons import Daemon, wait_until
from tests.sampler.test_sources import tfrecord

RECORDS = 60  # an object


def test_a_pinned_set_that_lost_the_middle_of_an_object_is_leased_again_when_that_is_there(
    tmp_path: Path,
):
    chance = random.Random(7)
    meant = {n: chance.randbytes(6000) for n in range(2 * RECORDS)}
    (tmp_path / "source").mkdir()
    for begin in (0, RECORDS):
        records = [encode_example({"n": n, "x": meant[n]}) for n in range(begin, begin + RECORDS)]
        (tmp_path / "source" / f"{begin}.tfrecord").write_bytes(tfrecord(records))
    source = {"url": f"file://{tmp_path}/source", "format": "tfrecord"}
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
                batches = list(epoch.numpy(16, pad_last=True))
        found = [
            (int(n), bytes(x))
            for batch in batches
            for n, x, valid in zip(batch["n"], batch["x"], batch["_valid"], strict=True)
            if valid
        ]
    assert sorted(found) == sorted(meant.items())
