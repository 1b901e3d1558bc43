"""A source of TFRecord files that TensorFlow wrote: carried verbatim, and read back by all three."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tensorflow as tf

from tests.e2e.conftest import upload
from tests.e2e.daemons import wait_until
from tests.e2e.reading import Records, by_numpy, by_tensorflow, by_torch

PER_FILE = 120


def write(path: Path, number: int) -> tuple[list[bytes], Records]:
    """A file by TensorFlow's own writer: its serialized records, and what they mean."""
    chance = random.Random(number)
    serialized: list[bytes] = []
    meant: Records = {}
    for place in range(PER_FILE):
        key, payload = f"{path.name}:{place}".encode(), chance.randbytes(chance.randint(1, 9000))
        features = {
            "key": tf.train.Feature(bytes_list=tf.train.BytesList(value=[key])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[place % 7])),
            "payload": tf.train.Feature(bytes_list=tf.train.BytesList(value=[payload])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        serialized.append(example.SerializeToString())
        meant[key] = place % 7, payload
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in serialized:
            writer.write(record)
    return serialized, meant


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Twelve sound files: name -> content, all serialized records, all meanings."""
    folder = tmp_path_factory.mktemp("written")
    contents, serialized, meant = {}, [], {}
    for number in range(12):
        path = folder / f"part-{number:02d}.tfrecord"
        records, meanings = write(path, number)
        contents[path.name] = path.read_bytes()
        serialized += records
        meant |= meanings
    return contents, serialized, meant


def test_what_tensorflow_wrote_is_carried_verbatim_and_a_corrupt_object_costs_itself(
    daemon, s3, files, tmp_path
):
    contents, serialized, meant = files
    broken_records, broken = write(tmp_path / "broken.tfrecord", 99)
    begin = sum(16 + len(record) for record in broken_records[:50])
    body = bytearray((tmp_path / "broken.tfrecord").read_bytes())
    body[begin + 20] ^= 1  # in the payload of record 50
    bucket = s3.bucket("tfrecords")
    upload(
        s3,
        bucket,
        {f"parts/{name}": content for name, content in contents.items()}
        | {"parts/broken.tfrecord": bytes(body), "parts/readme.tfrecord": b"no record at all " * 9},
    )
    source = {"url": f"s3://{bucket}/parts", "format": "tfrecord"}
    served = daemon({"train": {"source": source, "grow": {"first": "1MiB"}}}).start()
    wait_until(lambda: served.status()["datasets"]["train"]["whole"], what="all is cached")

    # Nothing but what follows the damage is lost, and the status says where.
    aside = served.status()["datasets"]["train"]["set_aside"]
    reasons = {one["key"]: one["reason"] for one in aside["examples"]}
    assert aside["units"] == 2
    assert reasons.keys() == {"broken.tfrecord", "readme.tfrecord"}
    assert f"corrupt record at byte {begin}" in reasons["broken.tfrecord"]
    assert "corrupt record at byte 0" in reasons["readme.tfrecord"]

    kept = dict(list(broken.items())[:50])
    with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
        raw = [record.numpy() for record in tf.data.TFRecordDataset(epoch.files)]
        assert sorted(raw) == sorted(serialized + broken_records[:50])
        assert by_numpy(epoch) == meant | kept
        assert by_torch(epoch) == meant | kept
        assert by_tensorflow(epoch) == meant | kept
