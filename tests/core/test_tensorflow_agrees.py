"""TensorFlow reads what we write, we read what TensorFlow writes, and both refuse the same bytes."""

import itertools
import random

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from cachecd_client import _core
from tests.client.foreign import of_tensorflow
from tests.core.shards import batches, reader_of, write
from tests.frameworks import tf


def ours(number):
    return {
        "image": np.full((2, 3), number, np.uint8).tobytes(),
        "name": f"record {number}",
        "label": number - 3,
        "scores": np.array([number, 0.5, -1e30], np.float32),
        "tags": [f"tag {i}" for i in range(1 + number % 3)],
        "boxes": np.arange(number % 4, dtype=np.int64) * 2**40,
    }


def theirs(number):
    record = ours(number)
    texts = {"name": record["name"].encode(), "tags": [tag.encode() for tag in record["tags"]]}
    return of_tensorflow(record | texts)


def spec():
    return {
        "image": tf.io.FixedLenFeature([], tf.string),
        "name": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "scores": tf.io.FixedLenFeature([3], tf.float32),
        "tags": tf.io.RaggedFeature(tf.string),
        "boxes": tf.io.RaggedFeature(tf.int64),
    }


FEATURES = [
    ("image", "bytes", "uint8", (2, 3), True),
    ("name", "bytes", "bytes", (), False),
    ("label", "int64", "int64", (), False),
    ("scores", "float", "float32", (3,), False),
    ("tags", "bytes", "bytes", None, False),
    ("boxes", "int64", "int64", None, False),
]


def split(data, offsets):
    return [bytes(data[a:b]) for a, b in itertools.pairwise(offsets)]


@pytest.fixture(scope="module")
def their_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("theirs") / "a.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(20):
            writer.write(theirs(number).SerializeToString())
    return path


def test_their_dataset_reads_our_shard(tmp_path):
    path = write(tmp_path / "a.tfrecord", [_core.encode_example(ours(n)) for n in range(20)])
    count = 0
    for number, record in enumerate(tf.data.TFRecordDataset(str(path))):
        parsed = tf.io.parse_single_example(record, spec())
        expected = ours(number)
        assert parsed["image"].numpy() == expected["image"]
        assert parsed["label"].numpy() == expected["label"]
        assert parsed["scores"].numpy().tolist() == expected["scores"].tolist()
        assert [tag.decode() for tag in parsed["tags"].numpy()] == expected["tags"]
        assert parsed["boxes"].numpy().tolist() == expected["boxes"].tolist()
        count += 1
    assert count == 20


def test_the_reader_gives_what_their_parser_gives_of_their_file(their_file):
    reader = reader_of(their_file, FEATURES, batch_size=20, shuffle=False)
    (batch,) = batches(reader)
    records = list(tf.data.TFRecordDataset(str(their_file)).as_numpy_iterator())
    parsed = tf.io.parse_example(records, spec())
    assert batch["label"].tolist() == parsed["label"].numpy().tolist()
    assert batch["scores"].tolist() == parsed["scores"].numpy().tolist()
    assert [row.tobytes() for row in batch["image"]] == parsed["image"].numpy().tolist()
    assert split(*batch["name"]) == parsed["name"].numpy().tolist()
    data, offsets, rows = batch["tags"]
    assert rows.tolist() == parsed["tags"].row_splits.numpy().tolist()
    assert split(data, offsets) == parsed["tags"].values.numpy().tolist()
    values, rows = batch["boxes"]
    assert rows.tolist() == parsed["boxes"].row_splits.numpy().tolist()
    assert values.tolist() == parsed["boxes"].values.numpy().tolist()


def as_theirs(message):
    lists = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}
    return {
        name: (lists[kind], list(getattr(feature, kind).value))
        for name, feature in message.features.feature.items()
        if (kind := feature.WhichOneof("kind")) is not None
    }


def test_altered_records_are_read_alike_or_refused_by_both():
    source = random.Random(5)
    good = theirs(5).SerializeToString()
    read = refused = 0
    for _ in range(1500):
        record = bytearray(good)
        for _ in range(source.randint(1, 3)):
            record[source.randrange(len(record))] = source.randrange(256)
        try:
            message = tf.train.Example.FromString(bytes(record))
            expected = as_theirs(message)
        except (DecodeError, UnicodeDecodeError) as error:
            # They also check a name that a second one in the same entry replaces.
            if "UTF-8" in str(error):
                continue
            with pytest.raises(ValueError, match=r"."):
                _core.decode_example(record)
            refused += 1
        else:
            # Their Python parser, unlike their C++ one, drops a map entry with unknown fields.
            if len(UnknownFieldSet(message.features)):
                continue
            # repr, because a NaN equals nothing.
            decoded = _core.decode_example(record)
            assert repr(sorted(decoded.items())) == repr(sorted(expected.items()))
            read += 1
    assert min(read, refused) > 150
