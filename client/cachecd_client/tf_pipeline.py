"""A file set as a stock tf.data pipeline: TensorFlow reads the files and parses the Examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cachecd_client import _core
from cachecd_client.errors import SchemaError
from cachecd_client.reading import Reading, share
from cachecd_client.schema import Feature, Schema

_CYCLE = 16  # files read by turns when shuffling
_READ_BYTES = 1 << 20  # per open file
_SHUFFLE_BYTES = 256 << 20  # of serialized records in the shuffle buffer

_LISTS = {"bytes": tf.string, "float": tf.float32, "int64": tf.int64}
# decode_raw knows no unsigned 32 and 64 bit integers and no bfloat16: same bits, other name.
_DECODED_AS = {"uint32": "int32", "uint64": "int64", "bfloat16": "uint16"}


def dataset(
    reading: Reading,
    batch_size: int,
    *,
    num_bytes: int,
    label: str | None,
    shuffle: bool,
    seed: int,
    drop_last: bool,
    features: Sequence[str] | None,
    rank: int | None,
    world: int | None,
) -> tf.data.Dataset:
    """The pipeline that `FileSet.tf_dataset` describes; its options are settled by now."""
    schema = reading.schema if features is None else reading.schema.select(features)
    if label is not None and label not in schema.names:
        schema = Schema((*schema.features, reading.schema[label]))
    rank, world, batches = share(reading.num_records, batch_size, drop_last, rank, world)
    mean_bytes = max(1, num_bytes // max(1, reading.num_records))
    seed %= 1 << 63  # TensorFlow's seeds are int64

    files = [path for path, _ in reading.files]
    if shuffle:
        order = _core.Permutation(len(files), seed).take(0, len(files))
        records = tf.data.Dataset.from_tensor_slices([files[i] for i in order]).interleave(
            lambda file: tf.data.TFRecordDataset(file, buffer_size=_READ_BYTES),
            cycle_length=_CYCLE,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
    else:
        records = tf.data.TFRecordDataset(files, buffer_size=_READ_BYTES)

    padded = world > 1 and not drop_last
    if world > 1:
        if padded:
            records = _padded(records, reading.schema, world)
            batches = -(-reading.num_records // (world * batch_size))
            rows = -(-reading.num_records // world)
        else:
            rows = batches * batch_size
        records = records.shard(world, rank).take(rows)
    if shuffle:
        rows = reading.num_records // world + 1
        records = records.shuffle(
            max(1, min(rows, _SHUFFLE_BYTES // mean_bytes)),
            seed=seed,
            reshuffle_each_iteration=False,
        )

    def parse(serialized: tf.Tensor, valid: tf.Tensor | None = None) -> Any:
        parsed = tf.io.parse_example(serialized, {f.name: _spec(f) for f in schema.features})
        batch = {f.name: _shaped(f, parsed[f.name]) for f in schema.features}
        if valid is not None:
            batch["_valid"] = valid
        return batch if label is None else (batch, batch.pop(label))

    parsed = records.batch(batch_size, drop_remainder=drop_last).map(
        parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    return parsed.apply(tf.data.experimental.assert_cardinality(batches)).prefetch(tf.data.AUTOTUNE)


def _padded(records: tf.data.Dataset, schema: Schema, world: int) -> tf.data.Dataset:
    """(record, True), and then world - 1 times (a record of zeros, False)."""
    nothing = tf.data.Dataset.from_tensors(_zeros(schema)).repeat(world - 1)
    return records.map(lambda record: (record, True)).concatenate(
        nothing.map(lambda record: (record, False))
    )


def _zeros(schema: Schema) -> bytes:
    """A serialized Example of the schema, all zeros and empty strings; no ragged feature."""
    values: dict[str, Any] = {}
    for feature in schema.features:
        if feature.shape is None:
            continue
        count = math.prod(feature.shape)
        if feature.raw:
            size = 2 if feature.dtype == "bfloat16" else np.dtype(feature.dtype).itemsize
            values[feature.name] = bytes(count * size)
        elif feature.kind == "bytes":
            values[feature.name] = [b""] * count
        else:
            dtype = np.int64 if feature.kind == "int64" else np.float32
            values[feature.name] = np.zeros(count, dtype)
    return _core.encode_example(values)


def _spec(feature: Feature) -> Any:
    """How tf.io.parse_example is told of the feature."""
    if feature.shape is None:
        return tf.io.RaggedFeature(_LISTS[feature.kind], row_splits_dtype=tf.int64)
    if feature.raw:
        return tf.io.FixedLenFeature([], tf.string)
    return tf.io.FixedLenFeature(list(feature.shape), _LISTS[feature.kind])


def _shaped(feature: Feature, parsed: Any) -> Any:
    """A parsed batch of the feature in the schema's dtype and shape."""
    if feature.dtype == "bytes":
        return parsed
    wanted = tf.as_dtype(feature.dtype)
    if not feature.raw:
        return parsed if parsed.dtype == wanted else tf.cast(parsed, wanted)
    if feature.shape is None:
        raise SchemaError(f"feature {feature.name!r}: a raw array needs a shape")
    decoded = tf.io.decode_raw(
        parsed, tf.as_dtype(_DECODED_AS.get(feature.dtype, feature.dtype)), little_endian=True
    )
    if decoded.dtype != wanted:
        decoded = tf.bitcast(decoded, wanted)
    return tf.reshape(decoded, [-1, *feature.shape])
