"""A stock tf.data pipeline over a file set: TensorFlow reads the files and parses the Examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import tensorflow as tf

import cachecd_client._core as _core
from cachecd_client import resources
from cachecd_client._core import Division
from cachecd_client.errors import CallerError
from cachecd_client.frameworks.tensorflow import check_replicas
from cachecd_client.loader.options import TfOptions, refuse_unknown
from cachecd_client.loader.reading import (
    Last,
    Lent,
    Reading,
    divide,
    keras_distribution,
    omitted_records,
    settle,
)
from cachecd_client.schema import Feature, Schema

_STREAMS = (
    2  # streams of files, read and shuffled in parallel; fixed, because it determines the order
)
_READ_BYTES = 1 << 20  # per open file
# The limits of all shuffle buffers. Four times the records would cost 10 % of the speed. TensorFlow fills
# the buffers before the first batch, which takes 0.35 s for these bytes: a shard of 64 MiB per stream.
_SHUFFLE_RECORDS = 10_000
_SHUFFLE_BYTES = 128 << 20
_PREFETCH_BYTES = 64 << 20
_LARGEST_SEED = 2**31 - 1  # TensorFlow takes a global seed modulo this

_LISTS = {"bytes": tf.string, "float": tf.float32, "int64": tf.int64}
# decode_raw lacks unsigned 32-bit and 64-bit integers and bfloat16; these types have the same bits.
_DECODED_AS = {"uint32": "int32", "uint64": "int64", "bfloat16": "uint16"}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def as_it_is(function: _Function) -> _Function:
    """Prevents AutoGraph from translating a function, which took half of the time to make a dataset."""
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))


class Pass(NamedTuple):
    """One pass over one set, as plain values or tensors, so that one graph reads any set."""

    files: Any  # paths, in reading order
    within: Any  # records in all shuffle buffers
    rows: Any  # rows of this rank
    sizes: Any  # sizes of its batches; one size if only the last batch may be short
    empty: Any  # batches after these batches that have only padding
    seed: Any


_NUMBERS = dict.fromkeys(("within", "rows", "empty", "seed"), tf.TensorSpec([], tf.int64))
PASS_SPEC = Pass(
    files=tf.TensorSpec([None], tf.string), sizes=tf.TensorSpec([None], tf.int64), **_NUMBERS
)


@dataclass(frozen=True)
class TfPipeline:
    """The properties of a pipeline that are the same for every set. `features`: the features to parse."""

    features: tuple[Feature, ...]
    batch_size: int
    label: str | None
    shuffle: bool
    last: Last
    rank: int
    world: int

    @staticmethod
    def features_of(schema: Schema, options: TfOptions) -> tuple[Feature, ...]:
        """Returns the features and the label that these options select. SchemaError for an unknown feature,
        CallerError if there are no features."""
        features, label = options.get("features"), options.get("label")
        parsed = (schema if features is None else schema.select(features)).features
        if label is not None and all(feature.name != label for feature in parsed):
            parsed = (*parsed, schema[label])
        if not parsed:
            raise CallerError("features=[]: expected at least one feature")
        return parsed

    def divided(self, num_records: int) -> Division:
        """Divides one pass over a set; CallerError if the pass has no step."""
        return divide(num_records, self.batch_size, self.world, self.last)

    def one_pass(
        self, files: Sequence[str], division: Division, num_bytes: int, seed: int
    ) -> tuple[Pass, int]:
        """Returns a pass over this set, and the bytes of one batch. Ranks that share a set need the same
        seed, because the order of the files decides the records of each rank."""
        num_records = division.records
        seed %= 1 << 63  # TensorFlow's seeds are int64
        if self.shuffle:
            order = _core.Permutation(len(files), seed).take(0, len(files))
            files = [files[i] for i in order]
        mean_bytes = max(1, num_bytes // max(1, num_records))
        within = min(num_records // self.world + 1, _SHUFFLE_RECORDS, _SHUFFLE_BYTES // mean_bytes)
        rows = division.begin(division.steps, self.rank)
        sizes = [self.batch_size]
        if self.last == "short" and (own := division.rows(self.rank).tolist())[:-1] != sizes * (
            len(own) - 1
        ):
            sizes = own
        empty = division.steps - -(-rows // self.batch_size) if self._pads else 0
        one = Pass(files, max(1, within), rows, sizes, empty, seed)
        return one, self.batch_size * mean_bytes

    @as_it_is
    def serialized(self, one: Pass) -> tf.data.Dataset:
        """Returns batches of the serialized records of the pass."""
        drop = self.last == "drop"
        if self.shuffle and self.world == 1:
            streams = _streams(one, self.batch_size)
            if self.last != "short":
                batches = streams.rebatch(self.batch_size, drop)
            else:
                batches = streams.rebatch(one.sizes)
        else:
            records = tf.data.TFRecordDataset(one.files, buffer_size=_READ_BYTES)
            if self.world > 1:
                records = records.shard(self.world, self.rank).take(one.rows)
            if self.shuffle:
                records = _shuffled(records, one.within, one.seed)
            batches = records.batch(self.batch_size, drop_remainder=drop)
            if self.last == "short":
                batches = batches.rebatch(one.sizes)
        if self._pads:
            nothing = tf.data.Dataset.from_tensors(tf.zeros([0], tf.string))
            batches = batches.concatenate(nothing.repeat(one.empty))
        return batches

    @as_it_is
    def reordered(self, one: Pass, number: tf.Tensor) -> Pass:
        """Returns the pass in another order, which the random number determines. With several ranks, the
        files keep their order, because it decides the records of each rank."""
        files = one.files
        if self.world == 1:
            by = tf.random.stateless_uniform(tf.shape(files), [number, 0], None, None, tf.int64)
            files = tf.gather(files, tf.argsort(by))
        return one._replace(files=files, seed=number)

    def ready(self, serialized: tf.data.Dataset, batches: int, batch_bytes: int) -> tf.data.Dataset:
        """Parses serialized batches, and prefetches at most `batches` batches."""
        calls = min(resources.processors(), batches)
        parsed = serialized.map(self._parse, num_parallel_calls=calls, deterministic=True)
        ahead = max(2, min(_PREFETCH_BYTES // batch_bytes, batches))
        options = tf.data.Options()
        # The autotuning thread sleeps 10, 20, 40 ms and so on, and the end of a pass waits for this thread.
        # With TensorFlow 2.21, passes took either 0.64 or 1.28 s.
        options.autotune.enabled = False
        # Each rank already has its own share of the set, and each node its own cache.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return parsed.prefetch(ahead).with_options(options)

    @property
    def _pads(self) -> bool:
        return self.last == "pad"

    @as_it_is
    def _parse(self, serialized: tf.Tensor) -> Any:
        if self._pads:
            rows = tf.shape(serialized)[0]
            nothing = _zeros(self.features)
            serialized = tf.cond(
                rows == self.batch_size,
                lambda: serialized,
                lambda: tf.concat([serialized, tf.fill([self.batch_size - rows], nothing)], 0),
            )
            serialized = tf.ensure_shape(serialized, [self.batch_size])
            valid = tf.range(self.batch_size) < rows
        parsed = tf.io.parse_example(serialized, {f.name: _spec(f) for f in self.features})
        batch = {f.name: _shaped(f, parsed[f.name]) for f in self.features}
        if self._pads:
            batch["_valid"] = valid
        if self.label is None:
            return batch
        return (batch, batch.pop(self.label)) + ((batch.pop("_valid"),) if self._pads else ())


def dataset(
    reading: Reading, batch_size: int, begin: Callable[[], None], reshuffle: bool, options: TfOptions
) -> tuple[tf.data.Dataset, Lent]:  # fmt: skip
    """Makes the pipeline that `FileSet.tf_dataset` describes. Returns it with the batches that it reads.
    Calls `begin` when all options are valid."""
    refuse_unknown(options, TfOptions, "tf_dataset() takes batch_size, reshuffle")
    shuffle, seed, last = settle(options, reading.shuffle, reading.seed, reading.drop_last)
    wanted = TfPipeline.features_of(reading.schema, options)
    refuse_keras_sharding()
    rank, world = reading.place(options.get("rank"), options.get("world"))
    part, division = reading.divided(batch_size, world, last, seed)
    check_replicas(division.is_full)
    begin()
    steps = batches = division.steps
    step = batch_size * world
    lent = Lent("TensorFlow", steps, step, omitted_records(division, step, reading.agreed))
    if part is not None or last == "drop":
        # As many records as the part, but other records, because TensorFlow cannot read slices of files.
        last = "drop"
        division = divide(reading.num_records, batch_size, world, last)
        batches = division.steps
    pipeline = TfPipeline(wanted, batch_size, options.get("label"), shuffle, last, rank, world)
    files = [path for path, _ in reading.files]
    one, batch_bytes = pipeline.one_pass(files, division, reading.num_bytes, seed)

    @as_it_is
    def passes(one: Pass) -> tf.data.Dataset:
        if steps <= batches:
            return pipeline.serialized(one)
        return tf.data.Dataset.range(-(-steps // batches)).flat_map(
            as_it_is(lambda k: pipeline.serialized(one._replace(seed=one.seed + _STREAMS * k)))
        )

    # A graph of TensorFlow 1 cannot count its iterations.
    if shuffle and reshuffle and tf.executing_eagerly():
        iteration = tf.data.Dataset.random(one.seed, rerandomize_each_iteration=True).take(1)
        serialized = iteration.flat_map(
            as_it_is(lambda number: passes(pipeline.reordered(one, number)))
        )
    else:
        serialized = passes(one)
    if steps != batches:
        serialized = serialized.take(steps)
    serialized = serialized.apply(tf.data.experimental.assert_cardinality(steps))
    return pipeline.ready(serialized, steps, batch_bytes), lent


def _streams(one: Pass, batch_size: int) -> tf.data.Dataset:
    """Returns shuffled batches of serialized records; the last batches may be short. Several streams of
    files, each with its own thread, deliver batches in turn. One thread fills a shuffle buffer, which took
    as long as parsing the records."""

    def stream(number: tf.Tensor) -> tf.data.Dataset:
        own_files = tf.data.Dataset.from_tensor_slices(one.files).shard(_STREAMS, number)
        records = tf.data.TFRecordDataset(own_files, buffer_size=_READ_BYTES)
        within = tf.maximum(tf.cast(one.within // _STREAMS, tf.int64), 1)
        return _shuffled(records, within, one.seed + number).batch(batch_size)

    return tf.data.Dataset.range(_STREAMS).interleave(
        stream, cycle_length=_STREAMS, num_parallel_calls=_STREAMS, deterministic=True
    )


def _shuffled(records: tf.data.Dataset, within: Any, seed: Any) -> tf.data.Dataset:
    """Shuffles the records with a seed that may be a tensor."""
    graph = tf.compat.v1.get_default_graph()
    # If the global seed is 0, TensorFlow compares the seed with 0, which fails for a tensor in a graph. The
    # default graph belongs to the function that is traced here.
    if graph.building_function and graph.seed is not None and graph.seed % _LARGEST_SEED == 0:
        graph.seed = 1
    return records.shuffle(within, seed=seed, reshuffle_each_iteration=False)


def _zeros(features: Sequence[Feature]) -> bytes:
    """Returns a serialized Example of zeros and empty strings, without ragged features."""
    values: dict[str, Any] = {}
    for feature in features:
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
    if feature.raw:
        return tf.io.FixedLenFeature([], tf.string, "" if feature.shape is None else None)
    if feature.shape is None:
        return tf.io.RaggedFeature(_LISTS[feature.kind], row_splits_dtype=tf.int64)
    return tf.io.FixedLenFeature(list(feature.shape), _LISTS[feature.kind])


def _shaped(feature: Feature, parsed: Any) -> Any:
    """Converts a parsed batch of the feature to the dtype and shape in the schema."""
    if feature.dtype == "bytes":
        return parsed
    wanted = tf.as_dtype(feature.dtype)
    if not feature.raw:
        return parsed if parsed.dtype == wanted else tf.cast(parsed, wanted)
    values = parsed if feature.shape is not None else tf.strings.reduce_join(parsed, keepdims=True)
    decoded = tf.io.decode_raw(
        values, tf.as_dtype(_DECODED_AS.get(feature.dtype, feature.dtype)), little_endian=True
    )
    if decoded.dtype != wanted:
        decoded = tf.bitcast(decoded, wanted)
    if feature.shape is None:
        # This validates the lengths: they add up only if each is a multiple of the element's size.
        lengths = tf.cast(tf.strings.length(parsed), tf.int64) // wanted.size
        return tf.RaggedTensor.from_row_lengths(decoded[0], lengths)
    # Not -1 for the rows, because the number cannot be inferred from arrays without elements.
    return tf.reshape(decoded, [tf.shape(parsed)[0], *feature.shape])


def refuse_keras_sharding() -> None:
    """Raises CallerError if Keras would divide datasets that are already the share of one process."""
    current = keras_distribution()
    if current is not None and getattr(current, "auto_shard_dataset", False):
        raise CallerError(
            f"{type(current).__name__} divides each dataset among {current.num_processes} processes, but "
            "each process already reads only its share: make the distribution with auto_shard_dataset=False"
        )
