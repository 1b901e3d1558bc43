"""Sources that are sorted: what reaches the trainer is mixed."""

from __future__ import annotations

from collections import Counter

import numpy as np

from cachecd_client._core import Sidecar, encode_example
from tests.core.shards import frames
from tests.e2e.daemons import file_source
from tests.e2e.reading import column

CLASSES, PER_CLASS = 20, 4


def test_objects_that_are_sorted_by_class_arrive_mixed_and_every_record_once(daemon, tmp_path):
    """Each object is larger than a shard and of one class."""
    noise, objects = np.random.default_rng(5), {}
    for number in range(CLASSES * PER_CLASS):
        label = number // PER_CLASS
        records = [
            encode_example({"id": number * 1000 + n, "label": label, "x": noise.bytes(2000)})
            for n in range(40)
        ]
        objects[f"{number:03d}"] = frames(records)
    source = {**file_source(tmp_path / "source", objects), "format": "tfrecord"}
    served = daemon({"train": {"source": source}}, shard_size="64KiB").start()
    served.until_whole()
    shards = sorted(served.cache.glob("datasets/train/*/shards/*.idx"))
    units = [set(Sidecar.read(str(path)).units.tolist()) for path in shards]
    typical = Counter(map(len, units)).most_common(1)[0][0]
    assert typical >= 8  # of the ten that a stream has in hand
    with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
        found = [int(i) for i in column(epoch, "id")]
    expected = [number * 1000 + n for number in range(CLASSES * PER_CLASS) for n in range(40)]
    assert sorted(found) == expected
