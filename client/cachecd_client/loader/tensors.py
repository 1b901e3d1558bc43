"""Arrays as tensors of torch, TensorFlow and JAX, over the same memory where the framework can use it.

Each function imports its framework when it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cachecd_client.errors import SchemaError

if TYPE_CHECKING:
    import jax
    import tensorflow as tf
    import torch

    Place: TypeAlias = jax.Device | jax.sharding.Sharding | None

# TensorFlow aborts the process if a DLPack buffer has a smaller alignment. The core aligns all of its own.
_ALIGNMENT = 64


def torch_tensor(array: NDArray[Any], bfloat16: bool = False, device: Any = None) -> torch.Tensor:
    """`array` as a tensor over its memory, or a copy of it if `device` is not the CPU.

    `bfloat16`: the uint16 elements are bfloat16.
    """
    import torch

    if bfloat16:
        shared = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        shared = torch.from_numpy(array)
    if device is None:
        return shared
    # CUDA copies such memory before the call returns. Another device may still read it when the memory
    # belongs to another batch.
    return shared.to(device, non_blocking=torch.device(device).type == "cuda")


def tf_tensor(array: NDArray[Any], bfloat16: bool = False) -> tf.Tensor:
    """`array` as a tensor over its memory, or a copy if TensorFlow cannot use that memory.

    `bfloat16`: the uint16 elements are bfloat16.
    """
    import tensorflow as tf

    flags = array.flags
    aligned = array.ctypes.data % _ALIGNMENT == 0
    if aligned and array.size and flags.c_contiguous and flags.writeable:
        shared = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    else:
        shared = tf.constant(array)
    return tf.bitcast(shared, tf.bfloat16) if bfloat16 else shared


def tf_strings(strings: Sequence[bytes]) -> tf.Tensor:
    """A string tensor [rows]. TensorFlow owns the memory of its strings, so this copies."""
    import tensorflow as tf

    return tf.constant(strings, tf.string, (len(strings),))


def tf_ragged(values: tf.Tensor, row_splits: tf.Tensor) -> tf.RaggedTensor:
    """Rows of `values`. The splits are not checked again, because the core made them."""
    import tensorflow as tf

    return tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)


def jax_array(array: NDArray[Any], bfloat16: bool = False, device: Place = None) -> jax.Array:
    """`array` as a jax.Array: on the CPU over its memory if that is aligned to 64 bytes, else a copy.

    The caller does not write to the memory again. 64-bit numbers become 32-bit numbers unless
    jax_enable_x64 is on: SchemaError for an integer that does not fit; a float that does not fit becomes
    infinite. `bfloat16`: the uint16 elements are bfloat16. `device`: as in jax.device_put. If it is a
    sharding over devices of several processes, `array` is the part of this process.
    """
    import jax

    if bfloat16:
        array = array.view(jax.numpy.bfloat16)
    elif (narrow := jax.dtypes.canonicalize_dtype(array.dtype)) != array.dtype:
        array = _narrowed(array, narrow)
    placed: jax.Array
    if isinstance(device, jax.sharding.Sharding) and not device.is_fully_addressable:
        placed = jax.make_array_from_process_local_data(device, array)  # type: ignore[no-untyped-call]
    else:
        placed = jax.device_put(array, device)
    return placed


def _narrowed(array: NDArray[Any], narrow: np.dtype[Any]) -> NDArray[Any]:
    """The 64-bit numbers as 32-bit numbers."""
    if narrow.kind == "f":
        with np.errstate(over="ignore"):
            return array.astype(narrow)
    limits = np.iinfo(narrow)
    beyond = array[(array < limits.min) | (array > limits.max)]
    if beyond.size:
        raise SchemaError(
            f"{beyond.flat[0]} does not fit {narrow}, to which JAX narrows {array.dtype}: set "
            "jax_enable_x64, or leave the feature out"
        )
    return array.astype(narrow)
