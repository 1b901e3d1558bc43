"""A pipeline that changes leases, shared among the replicas of a strategy, over a real daemon."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.e2e.daemons import Daemon, file_source, said_line, trainer

# Two replicas in one process. What they had of the first set, then steps until the cache has grown twice;
# and the process ends with the iterator alive.
MIRRORED = """
import json, sys, tensorflow as tf
cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from cachecd_client import connect

cache = connect()
with cache.acquire("train", 0, timeout=30) as epoch:
    steps, records = len(epoch.tf_dataset(16)), epoch.num_records
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = cache.tf_dataset("train", 16, features=["key"])
    batches = iter(strategy.experimental_distribute_dataset(dataset))

def step():
    replicas = strategy.experimental_local_results(next(batches)["key"])
    return [[key.decode() for key in replica.numpy()] for replica in replicas]

first = [step() for _ in range(steps)]
more = set()
while len(more) <= 1.5 * records:
    more.update(key for replica in step() for key in replica)
print(json.dumps({"first": first}), flush=True)
"""


@pytest.mark.long
def test_replicas_divide_each_batch_of_a_set_and_see_the_cache_grow(tmp_path):
    objects = {f"{number:04d}": random.Random(number).randbytes(4000) for number in range(400)}
    source = file_source(tmp_path / "objects", objects)
    grow = {"first": "256KiB", "per_epoch": "256KiB"}
    with Daemon(tmp_path, {"train": {"source": source, "grow": grow}}) as served:
        served.start()
        with trainer(served, MIRRORED, TF_CPP_MIN_LOG_LEVEL="2") as running:
            said = said_line(running)
            assert running.wait(30) == 0
    first = said["first"]
    assert {len(replica) for step in first for replica in step} == {8}
    assert {len(step) for step in first} == {2}
    keys = Counter(key for step in first for replica in step for key in replica)
    assert set(keys.values()) == {1}
    assert keys.keys() <= set(objects)
