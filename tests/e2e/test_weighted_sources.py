"""Several sources of one dataset, by a real daemon: their shares, kill -9, and one that goes away."""

from __future__ import annotations

import os
import random
import signal
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachecd.layout import Layout
from cachecd.model import ShardId
from cachecd.where import find_origin
from cachecd_client._core import masked_crc32c
from cachecd_client.schema import Feature, Schema
from tests.e2e.daemons import Daemon, wait_until

SCHEMA = Schema((Feature("key", "bytes", "bytes", ()), Feature("payload", "bytes", "bytes", ())))
STEP = "def step(record):\n    return {name: record[name] for name in ('key', 'payload')}\n"


def put_images(root: Path, count: int) -> None:
    root.mkdir(parents=True)
    chance = random.Random(3)
    for number in range(count):
        (root / f"image-{number:04d}").write_bytes(chance.randbytes(3000))


def put_texts(root: Path, files: range, records: int) -> None:
    root.mkdir(parents=True, exist_ok=True)
    chance = random.Random(4)
    for number in files:
        frames = b""
        for place in range(records):
            key = f"text-{number:03d}-{place:02d}".encode()
            example = SCHEMA.encode({"key": key, "payload": chance.randbytes(300)})
            head = struct.pack("<Q", len(example))
            frames += head + struct.pack("<I", masked_crc32c(head))
            frames += example + struct.pack("<I", masked_crc32c(example))
        (root / f"{number:03d}.tfrecord").write_bytes(frames)


@pytest.fixture
def served(daemon: Callable[..., Daemon], tmp_path: Path) -> Daemon:
    """One record of text to three images, of a source each; slow enough to be watched."""
    put_images(tmp_path / "images", 800)
    put_texts(tmp_path / "texts", range(40), 10)
    sources = [
        {"url": f"file://{tmp_path}/images", "format": "files", "weight": 3},
        {"url": f"file://{tmp_path}/texts", "format": "tfrecord", "weight": 1.0},
    ]
    train = {"sources": sources, "transform": "weighted_step:step", "grow": {"first": "256KiB"}}
    made: Daemon = daemon({"train": train}, sampler={"workers": 2, "bandwidth": "2MB/s"})
    (made.folder / "weighted_step.py").write_text(STEP)
    return made


def train(served: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = served.status()["datasets"]["train"]
    return found


def keys(served: Daemon) -> Counter[bytes]:
    with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
        batches = epoch.numpy(64, pad_last=True)
        return Counter(
            bytes(key)
            for batch in batches
            for key, valid in zip(batch["key"], batch["_valid"], strict=True)
            if valid
        )


def assert_known_where_from(served: Daemon) -> None:
    """A record of each source."""
    with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
        batch = next(iter(epoch.numpy(64, drop_last=False, ids=True)))
    found = {bytes(key).decode(): place for place, key in enumerate(batch["key"])}
    for source, of in ((0, "images/image-"), (1, "texts/")):
        key = next(key for key in found if key.startswith(("image-", "text-")[source]))
        shard = ShardId("train", int(batch["_shard"][found[key]]))
        origin = find_origin(Layout(served.cache), shard, int(batch["_record"][found[key]]))
        name = key if source == 0 else f"{key.split('-')[1]}.tfrecord"
        assert origin.unit.key == f"{source}/{name}"
        assert origin.object_url.endswith(f"{of.split('/')[0]}/{name}")


def share_of_images(found: Counter[bytes]) -> float:
    return sum(key.startswith(b"image") for key in found) / len(found)


def test_records_come_by_weight_and_none_twice_however_often_it_is_killed(served):
    for shards in (2, 5):
        served.start()
        wait_until(lambda least=shards: train(served)["shards"] >= least, what="more shards")
        served.kill()
    served.start()
    wait_until(lambda: train(served)["records"] >= 500, what="half of it")
    told = train(served)["sources"]
    assert [one["wanted_share"] for one in told] == [0.75, 0.25]
    assert [one["missing"] for one in told] == ["", ""]
    assert [one["units_listed"] for one in told] == [800, 40]
    found = keys(served)
    assert max(found.values()) == 1
    assert share_of_images(found) == pytest.approx(0.75, abs=0.06)
    assert told[0]["share"] == pytest.approx(0.75, abs=0.06)
    assert_known_where_from(served)
    # All of one is cached long before all of the other, which then comes alone.
    wait_until(lambda: train(served)["whole"], what="all is cached")
    found = keys(served)
    assert max(found.values()) == 1
    assert len(found) == 800 + 400


def test_a_reload_takes_up_other_weights_for_the_next_shards(served, tmp_path):
    put_texts(tmp_path / "texts", range(40, 240), 10)  # of which there are always some left
    served.start()
    wait_until(lambda: train(served)["shards"] >= 2, what="some of both")
    generation = train(served)["generation"]
    for source, weight in zip(served.document["datasets"]["train"]["sources"], (1, 3), strict=True):
        source["weight"] = weight
    served.write_config()
    os.kill(served.pid, signal.SIGHUP)
    wait_until(
        lambda: [one["wanted_share"] for one in train(served)["sources"]] == [0.25, 0.75],
        what="it is taken up",
    )
    shards = train(served)["shards"]
    wait_until(lambda: train(served)["shards"] >= shards + 2, what="those begun before are done")
    before = keys(served)
    wait_until(lambda: train(served)["records"] >= len(before) + 300, what="more")
    assert share_of_images(keys(served) - before) < 0.5
    assert train(served)["generation"] == generation


def test_without_one_of_them_the_others_go_on_and_it_is_said_which_until_it_is_back(
    served, tmp_path
):
    served.start()
    wait_until(lambda: train(served)["shards"] >= 2, what="some of both")
    (tmp_path / "texts").rename(tmp_path / "away")
    wait_until(lambda: train(served)["sources"][1]["missing"], what="it is missed")
    before = train(served)["records"]
    wait_until(lambda: train(served)["records"] >= before + 100, what="more of the other")
    assert train(served)["stopped"] == ""
    assert train(served)["set_aside"]["units"] == 0
    (tmp_path / "away").rename(tmp_path / "texts")
    wait_until(lambda: not train(served)["sources"][1]["missing"], 40, what="it is back")
    wait_until(lambda: train(served)["whole"], 40, what="all is cached")
    found = keys(served)
    assert max(found.values()) == 1
    assert len(found) == 800 + 400


def test_it_follows_its_source_to_another_place_among_several_and_to_being_alone(served):
    """What a person has excluded."""
    served.document["sampler"].pop("bandwidth")
    served.start()
    wait_until(lambda: train(served)["listed"], what="all is listed")
    with served.connect() as cache:
        assert cache.exclude("train", "0/image-0007")[0] == 1
    images, texts = served.document["datasets"]["train"]["sources"]
    alone = {name: images[name] for name in ("url", "format")}
    for config, known in (
        ({"sources": [texts, images]}, "1/image-0007"),
        ({"source": alone}, "image-0007"),
        ({"sources": [images, texts]}, "0/image-0007"),
    ):
        assert served.terminate() == 0
        served.document["datasets"]["train"] = config
        served.start()
        wait_until(lambda: train(served)["whole"], what="all is cached")
        found = keys(served)
        assert b"image-0007" not in found
        assert found[b"image-0008"] == 1
        assert [one["key"] for one in train(served)["set_aside"]["examples"]] == [known]
