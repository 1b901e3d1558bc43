"""TFRecord files that TensorFlow wrote: carried verbatim and read back by all three readers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.reading import Records, by_numpy, by_tensorflow, by_torch
from tests.frameworks import tf

PER_FILE = 120


def write(path: Path, seed: int) -> tuple[list[bytes], Records]:
    """A file by TensorFlow's own writer: its serialized records, and their values."""
    chance = random.Random(seed)
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
def files(tmp_path_factory) -> tuple[Path, list[bytes], Records]:
    """A folder of eight files of half a megabyte, all their serialized records, and their values."""
    folder = tmp_path_factory.mktemp("tfrecords")
    every: list[bytes] = []
    meanings: Records = {}
    for number in range(8):
        serialized, meant = write(folder / f"part-{number}.tfrecord", number)
        every += serialized
        meanings |= meant
    return folder, every, meanings


def dataset(folder: Path, **keys: Any) -> dict[str, Any]:
    return {"train": {"source": {"url": f"file://{folder}", "format": "tfrecord"}, **keys}}


def test_what_tensorflow_wrote_is_carried_verbatim_and_a_corrupt_object_costs_itself(
    daemon, files, tmp_path
):
    folder, serialized, meant = files
    source = tmp_path / "source"
    source.mkdir()
    for path in folder.iterdir():
        (source / path.name).symlink_to(path)
    broken, before = source / "broken.tfrecord", 50
    records, others = write(broken, 99)
    begin = sum(16 + len(record) for record in records[:before])
    body = bytearray(broken.read_bytes())
    body[begin + 20] ^= 1  # in the payload of the next record
    broken.write_bytes(body)
    (source / "readme.tfrecord").write_bytes(b"not a record " * 9)
    served = daemon(dataset(source, grow={"first": "1MiB"})).start()
    served.until_whole()

    # Nothing but what follows the damage is lost, and the status says where.
    reasons = served.skipped()
    assert reasons.keys() == {"broken.tfrecord", "readme.tfrecord"}
    assert f"corrupt record at byte {begin}" in reasons["broken.tfrecord"]
    assert "corrupt record at byte 0" in reasons["readme.tfrecord"]

    expected = meant | dict(list(others.items())[:before])
    with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
        raw = [record.numpy() for record in tf.data.TFRecordDataset(epoch.files)]
        assert sorted(raw) == sorted(serialized + records[:before])
        assert by_numpy(epoch) == expected
        assert by_torch(epoch) == expected
        assert by_tensorflow(epoch) == expected
