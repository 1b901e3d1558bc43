"""Columns of a batch whose rows differ in length, with one array of values and one array of offsets. Also
converts arrays to tensors of torch, TensorFlow and JAX.

A column indexes like a list (``column[3]``, ``column[-1]``, ``column[2:5]``, ``len``, iteration), and makes
a row only when it is accessed. Dense features are plain arrays, not columns.

A column is not a `collections.abc.Sequence`. Otherwise torch's DataLoader, Lightning and Accelerate would
unpack it row by row in Python when they pin or move a batch, and rebuild it with calls that a column
lacks.
"""

from __future__ import annotations

import itertools
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from cachecd_client.errors import CallerError, SchemaError

if TYPE_CHECKING:
    import jax
    import tensorflow as tf
    import torch

    Place: TypeAlias = jax.Device | jax.sharding.Sharding | None

_SHOWN, _CUT = 3, 64  # rows in a column's repr, and values of each row

Row = TypeVar("Row")
Offsets = NDArray[np.int64]


class _Column(ABC, Generic[Row]):
    """Rows between consecutive offsets; there is one more offset than rows."""

    def __init__(self, splits: Offsets) -> None:
        self._splits = splits

    def __len__(self) -> int:
        return len(self._splits) - 1

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Self | list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Self | list[Row]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return self._rows(start, max(start, stop))
            return [self._row(i) for i in range(start, stop, step)]
        return self._row(self._at(index))

    def __iter__(self) -> Iterator[Row]:
        return map(self._row, range(len(self)))

    def __repr__(self) -> str:
        """Shows the number of rows, and the first rows."""
        shown = [reprlib.repr(_plain(self._row(i))) for i in range(min(len(self), _SHOWN))]
        shown += ["..."] * (len(self) > _SHOWN)
        return f"<{type(self).__name__} column of {len(self)} rows: {', '.join(shown) or 'none'}>"

    def _at(self, index: int) -> int:
        """Returns the index of the row, counted from the first row; IndexError if there is no such row."""
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} of a column of {len(self)} rows")
        return row

    @abstractmethod
    def _row(self, row: int) -> Row: ...

    @abstractmethod
    def _rows(self, start: int, stop: int) -> Self:
        """Returns the rows start..stop as a column that shares the memory."""


class Ragged(_Column[NDArray[Any]]):
    """Lists of numbers: row i is ``values[row_splits[i]:row_splits[i + 1]]``, a view.

    `values`: [total, ...] of the dtype of the feature; `row_splits`: int64 [rows + 1], from 0.
    `bfloat16`: `values`, which are uint16 for NumPy, are bfloat16.
    """

    def __init__(self, values: NDArray[Any], row_splits: Offsets, bfloat16: bool = False) -> None:
        super().__init__(row_splits)
        self.values = values
        self.row_splits = row_splits
        self.bfloat16 = bfloat16

    def to_torch(self, device: Any = None) -> torch.Tensor:
        """A torch jagged tensor [rows, *] that shares the memory, or a copy on `device`."""
        import torch

        values = torch_tensor(self.values, self.bfloat16, device)
        return torch.nested.nested_tensor_from_jagged(
            values, torch_tensor(self.row_splits, device=device)
        )

    def to_tf(self) -> tf.RaggedTensor:
        """A tf.RaggedTensor [rows, None] with int64 row splits, which shares the memory.

        It is a copy if the memory is not aligned to 64 bytes, as in a slice.
        """
        return tf_ragged(tf_tensor(self.values, self.bfloat16), tf_tensor(self.row_splits))

    def to_jax(self, device: Any = None) -> tuple[jax.Array, jax.Array]:
        """(values, row_splits), because JAX has no ragged arrays; on a CPU, they share the memory.

        Their lengths differ from batch to batch, and `jax.jit` compiles for each length, so pad them.
        """
        values = jax_array(self.values, self.bfloat16, device)
        return values, jax_array(self.row_splits, device=device)

    def _row(self, row: int) -> NDArray[Any]:
        return self.values[self.row_splits[row] : self.row_splits[row + 1]]

    def _rows(self, start: int, stop: int) -> Self:
        values, splits = _cut(self.values, self.row_splits, start, stop)
        return type(self)(values, splits, self.bfloat16)


class Bytes(_Column[bytes]):
    """Byte strings: row i is ``data[offsets[i]:offsets[i + 1]]``, copied into `bytes`.

    `data`: uint8 [total]; `offsets`: int64 [rows + 1], from 0. `view(i)` does not copy.
    """

    def __init__(self, data: NDArray[np.uint8], offsets: Offsets) -> None:
        super().__init__(offsets)
        self.data = data
        self.offsets = offsets

    def _no_numbers(self, other: Any) -> NoReturn:
        """CallerError: a user expected pixels, but the column has encoded pictures."""
        raise CallerError(
            "this column has byte strings, not numbers: the loader's option decode={NAME: Image(...)} "
            "decodes pictures, and column.tolist() returns the bytes"
        )

    __add__ = __sub__ = __mul__ = __truediv__ = __radd__ = __rsub__ = __rmul__ = _no_numbers

    def view(self, row: int) -> NDArray[np.uint8]:
        """Row `row` as uint8 [length], which shares the column's memory; IndexError as `column[row]`."""
        row = self._at(row)
        return self.data[self.offsets[row] : self.offsets[row + 1]]

    def to_torch(self, device: Any = None) -> torch.Tensor:
        """A torch jagged uint8 tensor [rows, *] that shares the memory, or a copy on `device`."""
        return Ragged(self.data, self.offsets).to_torch(device)

    def to_tf(self) -> tf.Tensor:
        """A string tensor [rows]. TensorFlow owns the memory of its strings, so this copies."""
        return tf_strings(self.tolist())

    def to_jax(self, device: Any = None) -> tuple[jax.Array, jax.Array]:
        """(data, offsets), because JAX has no strings; see `Ragged.to_jax`."""
        return Ragged(self.data, self.offsets).to_jax(device)

    def tolist(self) -> list[bytes]:
        """All rows as a list; faster than a loop over the column."""
        whole = self.data.tobytes()
        ends = self.offsets.tolist()
        return [whole[begin:end] for begin, end in itertools.pairwise(ends)]

    def _row(self, row: int) -> bytes:
        return self.view(row).tobytes()

    def _rows(self, start: int, stop: int) -> Self:
        return type(self)(*_cut(self.data, self.offsets, start, stop))


class RaggedBytes(_Column[list[bytes]]):
    """Lists of byte strings: row i is ``strings[row_splits[i]:row_splits[i + 1]]``, a list.

    `strings`: a `Bytes` column of all strings; `row_splits`: int64 [rows + 1], from 0.
    """

    def __init__(self, strings: Bytes, row_splits: Offsets) -> None:
        super().__init__(row_splits)
        self.strings = strings
        self.row_splits = row_splits

    def to_tf(self) -> tf.RaggedTensor:
        """A string tf.RaggedTensor [rows, None]; copies."""
        return tf_ragged(self.strings.to_tf(), tf_tensor(self.row_splits))

    def to_torch(self, device: Any = None) -> NoReturn:
        """CallerError: a jagged tensor has only one level of rows."""
        raise CallerError(
            "torch has no tensor for lists of byte strings: column.strings.to_torch() is a jagged "
            "tensor of all strings, and column.row_splits has the bounds of the rows"
        )

    def to_jax(self, device: Any = None) -> NoReturn:
        """CallerError: JAX has no ragged arrays."""
        raise CallerError(
            "JAX has no array for lists of byte strings: column.strings.to_jax() is (data, offsets) "
            "of all strings, and column.row_splits has the bounds of the rows"
        )

    def _row(self, row: int) -> list[bytes]:
        return list(self.strings[int(self.row_splits[row]) : int(self.row_splits[row + 1])])

    def _rows(self, start: int, stop: int) -> Self:
        first, last = int(self.row_splits[start]), int(self.row_splits[stop])
        strings = self.strings._rows(first, last)
        return type(self)(strings, self.row_splits[start : stop + 1] - first)


def _plain(row: Any) -> Any:
    return row[:_CUT].tolist() if isinstance(row, np.ndarray) else row[:_CUT]


def _cut(
    values: NDArray[Any], splits: Offsets, start: int, stop: int
) -> tuple[NDArray[Any], Offsets]:
    first, last = splits[start], splits[stop]
    return values[first:last], splits[start : stop + 1] - first


_ALIGNMENT = 64  # TensorFlow aborts the process if a DLPack buffer has a smaller alignment


def torch_tensor(array: NDArray[Any], bfloat16: bool = False, device: Any = None) -> torch.Tensor:
    """Returns a tensor that shares the array's memory, or a copy if `device` is not the CPU. `bfloat16`:
    the uint16 elements are bfloat16."""
    import torch

    if bfloat16:
        shared = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        shared = torch.from_numpy(array)
    if device is None:
        return shared
    # CUDA copies pageable memory before the call returns. Another device might still read the memory after
    # it is reused for another batch.
    return shared.to(device, non_blocking=torch.device(device).type == "cuda")


def tf_tensor(array: NDArray[Any], bfloat16: bool = False) -> tf.Tensor:
    """Returns a tensor that shares the array's memory, or a copy if TensorFlow cannot use that memory.
    `bfloat16`: the uint16 elements are bfloat16."""
    import tensorflow as tf

    flags = array.flags
    aligned = array.ctypes.data % _ALIGNMENT == 0
    if aligned and array.size and flags.c_contiguous and flags.writeable:
        shared = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    else:
        shared = tf.constant(array)
    return tf.bitcast(shared, tf.bfloat16) if bfloat16 else shared


def tf_strings(strings: Sequence[bytes]) -> tf.Tensor:
    """Returns a string tensor [rows]. TensorFlow owns the memory of its strings, so this copies."""
    import tensorflow as tf

    return tf.constant(strings, tf.string, (len(strings),))


def tf_ragged(values: tf.Tensor, row_splits: tf.Tensor) -> tf.RaggedTensor:
    """Returns rows of `values`. Does not check the splits, because the core made them."""
    import tensorflow as tf

    return tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)


def jax_array(array: NDArray[Any], bfloat16: bool = False, device: Place = None) -> jax.Array:
    """Returns a jax.Array: on the CPU it shares the array's memory if that is aligned to 64 bytes; else it
    is a copy.

    The caller must not write to the memory again. 64-bit numbers become 32-bit numbers unless
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
    if narrow.kind == "f":
        with np.errstate(over="ignore"):
            return array.astype(narrow)
    limits = np.iinfo(narrow)
    beyond = array[(array < limits.min) | (array > limits.max)]
    if beyond.size:
        raise SchemaError(
            f"{beyond.flat[0]} does not fit {narrow}, to which JAX narrows {array.dtype}: set "
            "jax_enable_x64, or do not select the feature"
        )
    return array.astype(narrow)
