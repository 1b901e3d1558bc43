"""Decoded records: their schema, and their form as serialized Examples."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from cachecd_client import _core
from cachecd_client.errors import SchemaError
from cachecd_client.schema import NUMERIC_DTYPES, Feature, Schema, dims


def infer(record: Mapping[str, Any]) -> Schema:
    """The schema of decoded records (feature -> Python or array value), from one of them.

    int, bool -> int64 scalar; float -> float32 scalar; bytes, str -> bytes; a list of these -> ragged; an
    array -> its dtype and shape (int64 and float32 vectors and scalars as lists, other arrays raw).
    """
    return Schema(tuple(_feature(name, record[name]) for name in sorted(record)))


def encode(schema: Schema, record: Mapping[str, Any]) -> bytes:
    """`record` as a serialized Example of exactly this schema; SchemaError with the difference.

    A missing ragged feature is empty; a single value of a ragged feature is a list of one.
    """
    stored = {f.name: _stored(f, record[f.name]) for f in schema.features if f.name in record}
    if len(stored) < len(schema.features) or len(stored) < len(record):
        missing = [f.name for f in schema.features if f.name not in record and f.shape is not None]
        extra = sorted(record.keys() - set(schema.names))
        if missing or extra:
            raise SchemaError(f"record does not fit the schema: missing {missing}, extra {extra}")
    return _core.encode_example(stored)


def _feature(name: str, value: Any) -> Feature:
    if isinstance(value, (list, tuple)):
        if not value:
            raise SchemaError(
                f"feature {name!r}: the kind of an empty list is unknown; return an array"
            )
        return Feature(name, (first := _feature(name, value[0])).kind, first.dtype, None)
    if isinstance(value, (bytes, bytearray, memoryview, str)):
        return Feature(name, "bytes", "bytes", ())
    if isinstance(value, (bool, int)) and not isinstance(value, np.generic):
        return Feature(name, "int64", "int64", ())
    if isinstance(value, float) and not isinstance(value, np.generic):
        return Feature(name, "float", "float32", ())
    if (
        isinstance(value, (np.ndarray, np.generic))
        and (dtype := value.dtype.name) in NUMERIC_DTYPES
    ):
        if value.ndim <= 1 and dtype in ("int64", "float32"):
            return Feature(name, "int64" if dtype == "int64" else "float", dtype, value.shape)
        return Feature(name, "bytes", dtype, value.shape, raw=True)
    raise SchemaError(
        f"feature {name!r}: cannot store {type(value).__name__}; expected bytes, str, int, float, "
        f"a list of these, or an array of {', '.join(sorted(NUMERIC_DTYPES))}"
    )


def _stored(feature: Feature, value: Any) -> Any:
    """The value in the form of encode_example, checked against the feature."""
    # The usual values, in a tenth of the time of the checks below.
    plain = type(value)
    if feature.shape == () and not feature.raw:
        if plain is bytes and feature.dtype == "bytes":
            return value
        if plain is int and feature.dtype == "int64":
            return value
        if plain is float and feature.dtype == "float32":
            return value
    if feature.shape is None and plain not in (list, tuple):
        return _ragged(feature, value)
    if feature.dtype == "bytes" or feature.shape is None:
        actual = (
            _feature(feature.name, value) if feature.shape is not None or len(value) else feature
        )
        if (actual.kind, actual.dtype, actual.shape) != (
            feature.kind,
            feature.dtype,
            feature.shape,
        ):
            raise _misfit(feature, actual.dtype, actual.shape)
        return value
    carrier = "uint16" if feature.dtype == "bfloat16" else feature.dtype
    array = np.asarray(value)
    if isinstance(value, (int, float)) and not isinstance(value, np.generic):
        array = array.astype(carrier)
    dtype = _name_of(array.dtype)
    if dtype not in (feature.dtype, carrier) or array.shape != feature.shape:
        raise _misfit(feature, dtype, array.shape)
    if feature.raw:
        return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return array


# NumPy composes a dtype's name at each access, which takes longer than copying a small array.
@functools.cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return dtype.name


def _ragged(feature: Feature, value: Any) -> Any:
    """One value, or a one-dimensional array, as a list of the feature."""
    if isinstance(value, (bytes, bytearray, memoryview, str)) and feature.dtype == "bytes":
        return value
    array = np.asarray(value)
    if array.ndim > 1 or not np.can_cast(array.dtype, feature.dtype, "same_kind"):
        raise _misfit(feature, array.dtype.name, array.shape)
    return array.astype(feature.dtype, copy=False)


def _misfit(feature: Feature, dtype: str, shape: tuple[int, ...] | None) -> SchemaError:
    return SchemaError(
        f"feature {feature.name!r}: record has {dtype}{dims(shape)}, "
        f"the schema says {feature.dtype}{dims(feature.shape)}"
    )
