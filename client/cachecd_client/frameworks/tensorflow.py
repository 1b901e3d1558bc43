"""Batches of TensorFlow tensors, which share memory with the arrays."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from cachecd_client._core import Division
from cachecd_client.errors import CallerError
from cachecd_client.loader.columns import Bytes, tf_ragged, tf_strings, tf_tensor
from cachecd_client.loader.framework import Marks, Wrap, is_dense, strings_shape
from cachecd_client.schema import Feature, Schema

_from_dlpack = tf.experimental.dlpack.from_dlpack


def check_replicas(is_full: bool) -> None:
    """Raises CallerError if a batch may be short within a tf.distribute strategy with several replicas."""
    if is_full or not tf.distribute.has_strategy():
        return
    if (replicas := tf.distribute.get_strategy().num_replicas_in_sync) > 1:
        raise CallerError(
            f"the last batch may be short, but {replicas} replicas of tf.distribute need batches of one "
            "shape: pad_last=True adds rows that `_valid` masks, drop_last=True drops the batch"
        )


def _marks() -> Marks | None:
    try:
        from tensorflow.python.profiler import trace
    except ImportError:
        return None
    # TensorFlow sets trace.enabled while a profiler runs.
    return Marks(vars(trace), "enabled", partial(trace.Trace, "cachecd.next"))


class TensorFlow:
    """Every feature as a tensor [rows, *shape], a ragged feature as a tf.RaggedTensor."""

    name = "tf"
    marks = _marks()
    copies = False
    lane = None

    def wrap(self, feature: Feature, made: bool = False) -> Wrap:
        if made and not is_dense(feature):
            return Wrap(lambda column: column.to_tf())
        if made:
            return Wrap(lambda array: tf_tensor(array, feature.dtype == "bfloat16"))
        if feature.dtype == "bytes":
            return _strings(feature)
        bfloat16 = feature.dtype == "bfloat16"
        typed = _bfloat16 if bfloat16 else _from_dlpack
        if is_dense(feature):
            return Wrap(typed, dlpack=True)
        return Wrap(
            lambda values, row_splits: tf_ragged(typed(values), _from_dlpack(row_splits)),
            dlpack=True,
        )

    def check(self, delivered: Schema, division: Division, rank: int) -> None:
        check_replicas(division.is_full)


def _bfloat16(capsule: Any) -> tf.Tensor:
    return tf.bitcast(_from_dlpack(capsule), tf.bfloat16)


def _strings(feature: Feature) -> Wrap:
    if feature.shape is None:
        return Wrap(
            lambda data, offsets, row_splits: tf_ragged(
                tf_strings(Bytes(data, offsets).tolist()), tf_tensor(row_splits)
            )
        )
    shape = [-1, *strings_shape(feature)]

    def make(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> tf.Tensor:
        strings = tf_strings(Bytes(data, offsets).tolist())
        return strings if len(shape) == 1 else tf.reshape(strings, shape)

    return Wrap(make)
