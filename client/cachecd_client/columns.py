"""Columns of a batch whose rows differ in length: one array of values, one of offsets.

A column indexes like a list (``column[3]``, ``column[-1]``, ``column[2:5]``, ``len``, iteration)
and makes nothing per row until a row is asked for. Dense features are plain arrays, not columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import tensorflow as tf
    import torch

Row = TypeVar("Row")
Offsets = NDArray[np.int64]


class _Column(Sequence[Row], ABC):
    """Rows between consecutive offsets, of which there is one more than there are rows."""

    def __init__(self, splits: Offsets) -> None:
        self._splits = splits

    def __len__(self) -> int:
        return len(self._splits) - 1

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return self._rows(start, max(start, stop))
            return [self._row(i) for i in range(start, stop, step)]
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} of a column of {len(self)} rows")
        return self._row(row)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} column of {len(self)} rows>"

    @abstractmethod
    def _row(self, row: int) -> Row: ...

    @abstractmethod
    def _rows(self, start: int, stop: int) -> Sequence[Row]:
        """Rows start..stop as a column over the same memory."""


class Ragged(_Column[NDArray[Any]]):
    """Lists of numbers: row i is ``values[row_splits[i]:row_splits[i + 1]]``, a view.

    `values`: [total, ...] of the feature's dtype; `row_splits`: int64 [rows + 1], from 0.
    `bfloat16` says that `values`, uint16 for NumPy, are bfloat16.
    """

    def __init__(self, values: NDArray[Any], row_splits: Offsets, bfloat16: bool = False) -> None:
        super().__init__(row_splits)
        self.values = values
        self.row_splits = row_splits
        self.bfloat16 = bfloat16

    def to_torch(self, device: Any = None) -> torch.Tensor:
        """A torch jagged tensor [rows, *] over the same memory, or a copy of it on `device`."""
        import torch

        from cachecd_client.torch import tensor

        return torch.nested.nested_tensor_from_jagged(
            tensor(self.values, self.bfloat16, device), tensor(self.row_splits, device=device)
        )

    def to_tf(self) -> tf.RaggedTensor:
        """A tf.RaggedTensor [rows, None] with int64 row splits."""
        import tensorflow as tf

        values = tf.constant(self.values)
        return tf.RaggedTensor.from_row_splits(
            tf.bitcast(values, tf.bfloat16) if self.bfloat16 else values,
            tf.constant(self.row_splits),
        )

    def _row(self, row: int) -> NDArray[Any]:
        return self.values[self.row_splits[row] : self.row_splits[row + 1]]

    def _rows(self, start: int, stop: int) -> Ragged:
        values, splits = _cut(self.values, self.row_splits, start, stop)
        return Ragged(values, splits, self.bfloat16)


class Bytes(_Column[bytes]):
    """Byte strings: row i is ``data[offsets[i]:offsets[i + 1]]``, copied into `bytes`.

    `data`: uint8 [total]; `offsets`: int64 [rows + 1], from 0. `view(i)` does not copy.
    """

    def __init__(self, data: NDArray[np.uint8], offsets: Offsets) -> None:
        super().__init__(offsets)
        self.data = data
        self.offsets = offsets

    def view(self, row: int) -> NDArray[np.uint8]:
        """Row `row` as uint8 [length], over the column's memory."""
        return self.data[self.offsets[row] : self.offsets[row + 1]]

    def to_torch(self, device: Any = None) -> torch.Tensor:
        """A torch jagged uint8 tensor [rows, *] over the same memory, or a copy on `device`."""
        return Ragged(self.data, self.offsets).to_torch(device)

    def to_tf(self) -> tf.Tensor:
        """A string tensor [rows]; TensorFlow's strings are its own, so this copies."""
        import tensorflow as tf

        return tf.constant(list(self), dtype=tf.string, shape=(len(self),))

    def _row(self, row: int) -> bytes:
        return self.view(row).tobytes()

    def _rows(self, start: int, stop: int) -> Bytes:
        return Bytes(*_cut(self.data, self.offsets, start, stop))


class RaggedBytes(_Column[list[bytes]]):
    """Lists of byte strings: row i is ``strings[row_splits[i]:row_splits[i + 1]]``, a list.

    `strings`: a `Bytes` column of all of them; `row_splits`: int64 [rows + 1], from 0.
    """

    def __init__(self, strings: Bytes, row_splits: Offsets) -> None:
        super().__init__(row_splits)
        self.strings = strings
        self.row_splits = row_splits

    def to_tf(self) -> tf.RaggedTensor:
        """A string tf.RaggedTensor [rows, None]; copies."""
        import tensorflow as tf

        return tf.RaggedTensor.from_row_splits(self.strings.to_tf(), tf.constant(self.row_splits))

    def _row(self, row: int) -> list[bytes]:
        return list(self.strings[int(self.row_splits[row]) : int(self.row_splits[row + 1])])

    def _rows(self, start: int, stop: int) -> RaggedBytes:
        first, last = int(self.row_splits[start]), int(self.row_splits[stop])
        strings = self.strings._rows(first, last)
        return RaggedBytes(strings, self.row_splits[start : stop + 1] - first)


def column_of(
    dtype: str, shape: tuple[int, ...] | None, arrays: tuple[NDArray[Any], ...]
) -> Ragged | Bytes | RaggedBytes:
    """The column of a feature that is not dense, over the arrays of the core's BatchReader."""
    if len(arrays) == 3:
        data, offsets, row_splits = arrays
        return RaggedBytes(Bytes(data, offsets), row_splits)
    values, splits = arrays
    if dtype != "bytes":
        return Ragged(values, splits, bfloat16=dtype == "bfloat16")
    strings = Bytes(values, splits)
    if not shape:
        return strings
    # A list of the same length in every row, which no array can hold either.
    return RaggedBytes(strings, np.arange(0, len(strings) + 1, prod(shape), dtype=np.int64))


def _cut(
    values: NDArray[Any], splits: Offsets, start: int, stop: int
) -> tuple[NDArray[Any], Offsets]:
    first, last = splits[start], splits[stop]
    return values[first:last], splits[start : stop + 1] - first
