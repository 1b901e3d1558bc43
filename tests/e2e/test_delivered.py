"""As much is retired as trainers were given, and nothing because a lease named it."""

from __future__ import annotations

from tests.e2e.daemons import Daemon, file_source, wait_until

RECORD = 4 * 4096  # bytes of a payload


def settle(served: Daemon) -> None:
    def at_rest() -> bool:
        train = served.train
        return not (train["making"] or train["retired_shards"]) and train["shards"] > 8

    wait_until(at_rest, what="the cache is at its limit")


def evicted_bytes(served: Daemon) -> int:
    """At least: the payloads of shards that were retired."""
    return int(served.train["evicted_shards"]) * 3 * RECORD


def test_with_few_steps_an_epoch_no_more_is_retired_than_was_delivered(daemon, tmp_path):
    objects = {f"{n:04d}": b"%04d" % n * 4096 for n in range(330)}
    train = {"source": file_source(tmp_path / "source", objects), "grow": {"first": "256KiB"}}
    train["evict"] = {"refresh": 0.5}
    full = daemon({"train": train}, limit="3MiB", shard_size="64KiB").start()
    settle(full)
    before, delivered, gone = evicted_bytes(full), 0, []
    with full.connect() as cache:
        for epoch in cache.epochs("train", 12, steps_per_epoch=1):
            assert gone == [] or gone[-1] <= delivered, "nobody was given what left the cache"
            records = sum(len(batch["key"]) for batch in epoch.numpy(2))
            delivered += records * RECORD * 1.1
            settle(full)
            gone.append(evicted_bytes(full) - before)
    assert gone[0] == 0
    assert gone[-1] > 0, "two records an epoch come to a shard in the end"
    assert 0 < full.train["coverage"] < 1
