"""JPEGs, cached as they are and decoded on reading: the same pixels after a resume and on any number of
ranks; a damaged picture costs itself."""

from __future__ import annotations

import numpy as np

from cachecd_client import Image
from tests.client.test_decode import encoded, picture
from tests.e2e.daemons import file_source

DAMAGED = 7
OPTIONS = {
    "rename": {"payload": "image"},
    "decode": {"payload": Image(16, crop="random", flip=0.5)},
    "features": ["payload", "key"],
}


def rows(batches):
    return [
        (bytes(key).decode(), np.asarray(pixels).tobytes())
        for batch in batches
        for key, pixels in zip(batch["key"], batch["image"], strict=True)
    ]


def test_pictures_are_decoded_alike_and_a_damaged_one_harms_no_shard(daemon, tmp_path):
    pictures = {
        "train": {f"{n:03d}.jpg": encoded(picture(n)) for n in range(120)},
        "more": {f"{n:03d}.jpg": encoded(picture(n, 30, 30)) for n in range(60)},
    }
    damaged = f"{DAMAGED:03d}.jpg"
    pictures["train"][damaged] = pictures["train"][damaged][:500]
    datasets = {
        name: {"source": file_source(tmp_path / name, bodies), "grow": {"first": "64KiB"}}
        for name, bodies in pictures.items()
    }
    served = daemon(datasets, shard_size="64KiB").start()
    served.until_whole("train", "more")

    passes, state = [], {}
    with served.connect() as cache:
        for epoch in cache.epochs("train", 2, job="a"):
            loader = epoch.numpy(10, **OPTIONS)
            batches = []
            for batch in loader:
                assert batch["image"].shape == (10, 16, 16, 3)
                batches.append(batch)
                if loader.position == 4 and epoch.epoch == 0:
                    state = loader.state_dict()
            passes.append(rows(batches))
            assert [why[:9] for *_, why in loader.corrupt] == ["picture: "]
    assert all(len(found) == 120 and len(dict(found)) == 119 for found in passes)
    pixels = [dict(found) for found in passes]
    assert all(pixels[0][key] != pixels[1][key] for key in pixels[0])
    assert damaged not in pixels[0]

    with served.connect() as cache:
        epochs = cache.epochs("train", 2, job="a", state=state)
        resumed = [rows(epoch.numpy(10, **OPTIONS)) for epoch in epochs]
    assert resumed == [passes[0][40:], passes[1]]

    with served.connect() as cache:
        weights = {"train": 0.5, "more": 0.5}
        for epoch in cache.epochs(weights, 1, steps_per_epoch=8, job="b"):
            alone = rows(epoch.numpy(10, **OPTIONS))
            ranks = [rows(epoch.numpy(5, rank=rank, world=2, **OPTIONS)) for rank in range(2)]
            of_ranks = [row for pair in zip(*ranks, strict=True) for row in pair]
            differing = sum(a != b for a, b in zip(alone, of_ranks, strict=True))
            assert len(alone) == 80
            assert differing <= 1, "a rank replaces the damaged picture by one of its own"
    assert served.status()["cache"]["corrupt_shards"] == 0
    assert "corrupt record reported" not in served.said()
