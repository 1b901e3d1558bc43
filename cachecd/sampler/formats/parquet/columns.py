"""The features of a Parquet file's columns, and their values in Python.

Nested structs are flattened: a field of a struct is a separate feature, named with dots. A struct of
`bytes` and `path` (an image or audio of Hugging Face) is its bytes, under the column's own name.

    integers, booleans          int (unsigned 64 bits: numpy.uint64)
    float16, float32            float
    float64, decimals           numpy.float64
    dates, times, timestamps    int: in the unit of the schema
    strings, binary             bytes
    lists of numbers            an array; lists of lists one of more dimensions, or lists of arrays
    lists of strings, binary    a list of bytes

A null is None. A null within a list of floats is NaN; within any other list it is an error. A decimal or a
time that its feature cannot hold is a decimal.Decimal, which no feature holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cachecd.errors import UnitError

INT96_UNIT = "us"  # of these timestamps, which end in 2262 as nanoseconds
_NANOSECONDS = {"days": 86_400 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

_FILE = {"bytes", "path"}
# A map is a list of structs of `key` and `value`.
_LISTS = (
    pa.ListType,
    pa.LargeListType,
    pa.FixedSizeListType,
    pa.ListViewType,
    pa.LargeListViewType,
    pa.MapType,
)
_BYTES = {
    *(pa.binary(), pa.large_binary(), pa.binary_view()),
    *(pa.string(), pa.large_string(), pa.string_view()),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One feature: column `leaf` of the file.

    `fields`: the path to it, from a record batch down. `dtype`: "bytes", NumPy's name of a number, or "" if
    the column cannot be stored. `dims`: the number of lists around a value. `fixed`: all of these lists
    have a declared length. `unit`: of dates and times, as of Feature.
    """

    name: str
    leaf: int
    fields: tuple[str, ...]
    dtype: str
    dims: int
    fixed: bool
    unit: str = ""

    def values(self, batch: Any, unit: str | None = None) -> list[Any]:
        """Returns one value for each row of a record batch; dates and times in this unit, or in their own.
        UnitError if a value cannot be stored."""
        array, lists = self._descend(batch)
        if self.unit:
            array = _times(array, (self.unit if unit is None else unit).split()[0])
        if self.dtype == "bytes":
            values: Any = _bytes(array)
            if not lists:
                return list(values)
            if any(value is None for value in values):
                raise self._null_within()
        elif not lists:
            return array if isinstance(array, list) else _scalars(array, self.dtype)
        else:
            values = self._numbers(array)
        while len(lists) > 1:
            values = self._nest(values, lists.pop())
        (lengths,) = lists
        ends = np.cumsum(np.maximum(lengths, 0))
        rows = [
            None if length < 0 else values[end - length : end]
            for length, end in zip(lengths.tolist(), ends.tolist(), strict=True)
        ]
        if isinstance(values, np.ndarray) and values.dtype == object:  # some rows have Decimals
            return [None if row is None else np.array(row.tolist()) for row in rows]
        return rows

    def _descend(self, batch: Any) -> tuple[Any, list[NDArray[np.int64]]]:
        """Returns the flattened values without their lists; and the lengths of the lists, from the
        outermost to the innermost; -1 for a null."""
        first, *fields = self.fields
        array = batch.column(first)
        lists = []
        while True:
            kind = array.type
            if isinstance(kind, pa.BaseExtensionType):
                array = array.storage
            elif pa.types.is_struct(kind):
                array = array.flatten()[kind.get_field_index(fields.pop(0))]
            elif pa.types.is_map(kind):
                array = array.cast(pa.list_(kind.field(0)))
            elif isinstance(kind, _LISTS):
                lengths = pc.fill_null(pc.list_value_length(array), -1)
                lists.append(lengths.to_numpy(zero_copy_only=False).astype(np.int64))
                array = array.flatten()
            elif pa.types.is_dictionary(kind):
                array = array.dictionary_decode()
            else:
                return array, lists

    def _numbers(self, array: Any) -> NDArray[Any]:
        if isinstance(array, list):
            if None in array:
                raise self._null_within()
            return np.array(array)
        if pa.types.is_decimal(array.type):
            return np.array([math.nan if one is None else one for one in _decimals(array)])
        if array.null_count and not self.dtype.startswith("float"):
            raise self._null_within()
        numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return numbers

    def _nest(self, values: Any, lengths: NDArray[np.int64]) -> Any:
        """Groups values into lists of these lengths: one more dimension if all lengths are equal."""
        if lengths.size and lengths.min() < 0:
            raise self._null_within()
        if isinstance(values, np.ndarray):
            length = int(lengths[0]) if lengths.size else 0
            if (lengths == length).all():
                return values.reshape(lengths.size, length, *values.shape[1:])
        ends = np.cumsum(lengths).tolist()
        return [values[end - n : end] for n, end in zip(lengths.tolist(), ends, strict=True)]

    def _null_within(self) -> UnitError:
        return UnitError(f"column {self.name!r}: a null within a list cannot be stored")


def columns_of(schema: Any) -> tuple[Column, ...]:
    """Returns the features of an Arrow schema's columns, in its order."""
    leaves = iter(range(1 << 62))
    columns: list[Column] = []
    for field in schema:
        columns += _walk(field.name, (field.name,), field.type, 0, True, leaves)
    return tuple(columns)


def _walk(
    name: str, fields: tuple[str, ...], kind: Any, dims: int, fixed: bool, leaves: Iterator[int]
) -> Iterator[Column]:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        children = [kind.field(i) for i in range(kind.num_fields)]
        is_file = {child.name for child in children} == _FILE
        for child in children:
            own = name if is_file else f"{name}.{child.name}"
            below = _walk(own, (*fields, child.name), child.type, dims, fixed, leaves)
            if is_file and child.name == "path":
                for _ in below:  # it has a leaf, too
                    pass
            else:
                yield from below
    elif isinstance(kind, _LISTS):
        fixed = fixed and pa.types.is_fixed_size_list(kind)
        yield from _walk(name, fields, kind.field(0).type, dims + 1, fixed, leaves)
    else:
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        yield Column(
            *(name, next(leaves), fields, _dtype(kind), dims, bool(dims) and fixed, _unit(kind))
        )


_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def _dtype(kind: Any) -> str:
    types = pa.types
    if kind in _BYTES or types.is_fixed_size_binary(kind):
        return "bytes"
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return _FLOATS.get(str(kind), str(kind))  # to_pandas_dtype() of old pyarrow imports pandas
    if types.is_decimal(kind):
        return "float64"
    if types.is_temporal(kind) and not types.is_interval(kind):
        return "int64"
    return ""


def _unit(kind: Any) -> str:
    types = pa.types
    if not types.is_temporal(kind) or types.is_interval(kind):
        return ""
    unit = "days" if types.is_date(kind) else kind.unit
    since = " since midnight" if types.is_time(kind) else " since 1970"
    return unit if types.is_duration(kind) else f"{unit}{since}"


def _times(array: Any, unit: str) -> Any:
    """Returns dates and times as integers of a unit. If the file has another unit, returns a list, in which
    values that are not integers are Decimals."""
    kind = array.type
    stored = {"date32[day]": "days", "date64[ms]": "ms"}.get(str(kind)) or kind.unit
    array = array.view(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
    if stored == unit:
        return array

    def converted(time: int) -> int | Decimal:
        whole, rest = divmod(time * _NANOSECONDS[stored], _NANOSECONDS[unit])
        return whole if not rest else Decimal(time * _NANOSECONDS[stored]) / _NANOSECONDS[unit]

    return [None if one is None else converted(one) for one in array.to_pylist()]


def _bytes(array: Any) -> list[bytes | None]:
    kind = array.type
    # As bytes, because text would be checked for UTF-8.
    if pa.types.is_string(kind):
        array = array.view(pa.binary())
    elif pa.types.is_large_string(kind):
        array = array.view(pa.large_binary())
    elif pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        array = array.cast(pa.large_binary())
    values: list[bytes | None] = array.to_pylist()
    return values


def _decimals(array: Any) -> list[Any]:
    """Returns each decimal as numpy.float64, if that has the same digits as text. Otherwise the decimal is
    unchanged, and no feature can store it. pyarrow's cast is not used: it does not round correctly."""

    def stored(one: Decimal) -> np.float64 | Decimal:
        number = np.float64(one)
        return number if Decimal(repr(float(number))) == one else one

    return [None if one is None else stored(one) for one in array.to_pylist()]


def _scalars(array: Any, dtype: str) -> list[Any]:
    if pa.types.is_decimal(array.type):
        return _decimals(array)
    valid = None
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        array = array.drop_null()
    numbers = array.to_numpy(zero_copy_only=False)
    if numbers.dtype == np.bool_:
        numbers = numbers.astype(np.int64)
    # Python numbers are stored as int64 and float32, which cannot hold all values of these two dtypes.
    values = list(numbers) if dtype in ("float64", "uint64") else numbers.tolist()
    if valid is None:
        return values
    rest = iter(values)
    return [next(rest) if is_valid else None for is_valid in valid.tolist()]
