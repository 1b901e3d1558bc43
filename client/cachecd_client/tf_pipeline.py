"""A file set as a stock tf.data pipeline: TensorFlow reads the files and parses the Examples."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cachecd_client import _core
from cachecd_client.errors import SchemaError
from cachecd_client.reading import Reading, share
from cachecd_client.schema import Feature, Schema

_STREAMS = 2  # of files that are read and shuffled side by side; fixed, as the order depends on it
_READ_BYTES = 1 << 20  # per open file
# Of serialized records in all shuffle buffers. Four times the records cost 10 % of the speed.
_SHUFFLE_RECORDS = 10_000
_SHUFFLE_BYTES = 256 << 20
_PREFETCH_BYTES = 64 << 20

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
        files = [files[i] for i in _core.Permutation(len(files), seed).take(0, len(files))]
    rows = reading.num_records // world + 1
    within = max(1, min(rows, _SHUFFLE_RECORDS, _SHUFFLE_BYTES // mean_bytes))

    padded = world > 1 and not drop_last
    if shuffle and world == 1:
        serialized = _streams(files, within, seed, batch_size).rebatch(batch_size, drop_last)
    else:
        records = tf.data.TFRecordDataset(files, buffer_size=_READ_BYTES)
        if padded:
            records = _padded(records, reading.schema, world)
            records = records.shard(world, rank).take(-(-reading.num_records // world))
        elif world > 1:
            records = records.shard(world, rank).take(batches * batch_size)
        if shuffle:
            records = records.shuffle(within, seed=seed, reshuffle_each_iteration=False)
        serialized = records.batch(batch_size, drop_remainder=drop_last)

    def parse(serialized: tf.Tensor, valid: tf.Tensor | None = None) -> Any:
        parsed = tf.io.parse_example(serialized, {f.name: _spec(f) for f in schema.features})
        batch = {f.name: _shaped(f, parsed[f.name]) for f in schema.features}
        if valid is not None:
            batch["_valid"] = valid
        return batch if label is None else (batch, batch.pop(label))

    parsed = serialized.map(
        parse, num_parallel_calls=len(os.sched_getaffinity(0)), deterministic=True
    )
    ahead = max(2, _PREFETCH_BYTES // (batch_size * mean_bytes))
    ready = parsed.apply(tf.data.experimental.assert_cardinality(batches)).prefetch(ahead)
    options = tf.data.Options()
    # The thread that tunes sleeps 10, 20, 40 ms and so on, and the end of a pass waits for it: with
    # TensorFlow 2.21 passes took 0.64 or 1.28 s and nothing in between.
    options.autotune.enabled = False
    return ready.with_options(options)


def _streams(files: Sequence[str], within: int, seed: int, batch_size: int) -> tf.data.Dataset:
    """Batches of serialized records, shuffled; those at the end may be short.

    By turns from several streams of files, each with a thread of its own: a single shuffle buffer is
    one thread's work, and took as long as parsing what came out of it.
    """
    streams = min(_STREAMS, len(files))

    def stream(number: tf.Tensor) -> tf.data.Dataset:
        some = tf.data.Dataset.from_tensor_slices(files).shard(streams, number)
        records = tf.data.TFRecordDataset(some, buffer_size=_READ_BYTES)
        return records.shuffle(
            max(1, within // streams), seed=seed + number, reshuffle_each_iteration=False
        ).batch(batch_size)

    return tf.data.Dataset.range(streams).interleave(
        stream, cycle_length=streams, num_parallel_calls=streams, deterministic=True
    )


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
    # Not -1 for the rows: arrays without elements tell no number of them.
    return tf.reshape(decoded, [tf.shape(parsed)[0], *feature.shape])
