"""Infers schemas, explains misfits, and serializes decoded records as Examples."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.config.source import FeatureConfig
from cachecd_client import _core
from cachecd_client.errors import SchemaError
from cachecd_client.schema import LIST_DTYPES, NUMERIC_DTYPES, Feature, Schema, dims

# A number may be stored as the same kind of number, or as a kind with a higher rank.
_RANKS = {"b": 1, "u": 2, "i": 2, "f": 3}

# Names that YAML would not read as text.
_WORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")


# Cached, because NumPy builds a dtype's name at each access. That takes longer than copying a small array.
@functools.cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return dtype.name


def infer(record: Mapping[str, Any], features: Collection[str] = ()) -> Schema:
    """Returns the schema of a decoded record (feature -> Python or array value).

    int, bool -> int64 scalar; float -> float32 scalar; bytes, str -> bytes; a list of these, or of numbers
    of one dtype -> ragged; an array -> its dtype and shape (int64 and float32 vectors and scalars as lists,
    other arrays raw). `features`: the names that the configuration declares. The schema omits such a
    feature if the value does not show its kind, for example an empty list.
    """
    inferred = []
    for name in sorted(record):
        try:
            inferred.append(_feature(name, record[name]))
        except SchemaError:
            if name not in features:
                raise
    return Schema(tuple(inferred))


def stored_feature(
    name: str,
    dtype: str,
    shape: tuple[int, ...] | None,
    classes: tuple[str, ...] = (),
    unit: str = "",
) -> Feature:
    """Returns the feature in the form that the schema has for it: a list of an Example, or raw."""
    for kind, listed in LIST_DTYPES.items():
        if dtype == listed and len(shape or ()) < 2:
            return Feature(name, kind, dtype, shape, False, classes, unit)
    return Feature(name, "bytes", dtype, shape, True, (), unit)


def declared(schema: Schema, features: Mapping[str, FeatureConfig]) -> Schema:
    """Returns the schema of the first records, changed to the features that the configuration declares.
    Declared numbers are raw if the first records have bytes, or if no list of an Example has the dtype."""
    known = {feature.name: feature for feature in schema.features}
    kinds = {dtype: kind for kind, dtype in LIST_DTYPES.items()}
    for name, given in features.items():
        first, kind = known.get(name), kinds.get(given.dtype, "bytes")
        kind = "bytes" if first is not None and first.kind == "bytes" else kind
        raw = kind == "bytes" and given.dtype != "bytes"
        optional = given.optional and given.extents is not None
        form = Feature(name, kind, given.dtype, given.extents, raw, optional=optional)
        if first is not None and first.dtype == given.dtype:
            form = replace(form, classes=first.classes, unit=first.unit)
        known[name] = form
    return Schema(tuple(known[name] for name in sorted(known)))


def explain(schema: Schema, misfit: _core.Misfit, first: str = "the first 64 records") -> str:
    """Returns why ShardWriter.append_frames skipped a record, with the YAML that would admit it.
    `first`: what the message calls the records that determined the schema."""
    _, reason, name, kind, count, _ = misfit
    if not name:
        return reason
    known = {feature.name: feature for feature in schema.features}.get(name)
    if kind == "nothing":
        return reason + (_declare(replace(known, optional=True)) if known else "")
    if known is None:
        shape = () if count == 1 else None
        feature = Feature(name, kind, LIST_DTYPES[kind], shape, optional=shape == ())
        return f"{reason}, which comes from {first}{_declare(feature)}"
    has_another_length = "the schema says" in reason and kind == known.kind
    is_list = has_another_length and (count == 1 or not known.raw)
    return reason + (_declare_ragged(known) if is_list else "")


def encode(schema: Schema, record: Mapping[str, Any]) -> bytes:
    """Returns the record as a serialized Example of exactly this schema. Otherwise SchemaError, with the
    difference.

    No value changes: a number of another dtype is stored only if the feature's dtype can hold it. Only
    Python's floats are rounded to float32. A missing ragged feature is stored as empty. An optional feature
    may be missing. A single value of a ragged feature is stored as a list of one.
    """
    stored = {f.name: _stored(f, record[f.name]) for f in schema.features if f.name in record}
    if len(stored) < len(schema.features) or len(stored) < len(record):
        needed = (f.name for f in schema.features if f.shape is not None and not f.optional)
        missing = [name for name in needed if name not in record]
        extra = sorted(record.keys() - set(schema.names))
        if missing or extra:
            inferred = infer({name: record[name] for name in extra}, extra).features
            advice = [replace(f, optional=f.shape is not None) for f in inferred]
            advice += [replace(schema[name], optional=True) for name in missing]
            raise SchemaError(
                f"record does not fit the schema: missing {missing}, extra {extra}{_declare(*advice)}"
            )
    return _core.encode_example(stored)


def _feature(name: str, value: Any) -> Feature:
    if isinstance(value, (list, tuple)):
        if not value:
            raise SchemaError(
                f"feature {name!r}: the kind of an empty list is unknown; return an array"
            )
        first = _feature(name, value[0])
        return Feature(name, first.kind, first.dtype, None, first.raw)
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
    """Converts the value to a type that `_core.encode_example` accepts. SchemaError if the value does not
    fit the feature."""
    # The most frequent values take a tenth of the time of the checks below.
    plain = type(value)
    if not feature.shape and not feature.raw:
        if plain is bytes and feature.dtype == "bytes":
            return value
        if plain is int and feature.dtype == "int64":
            return value
        if plain is float and feature.dtype == "float32":
            return value
    if feature.dtype == "bytes":
        return _texts(feature, value)
    is_list = feature.shape in (None, (len(value),)) if plain in (list, tuple) and value else False
    if is_list and not feature.raw and feature.dtype == "float32" and type(value[0]) is float:
        return value  # the core rounds Python's floats
    array = _exact(feature, _array(feature, value))
    if array.ndim > 1 if feature.shape is None else array.shape != feature.shape:
        raise _misfit(feature, _name_of(array.dtype), array.shape)
    if feature.raw:
        return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return array.reshape(-1) if array.ndim > 1 else array


def _array(feature: Feature, value: Any) -> NDArray[Any]:
    """Returns the value as an array. SchemaError if that would change a number, or if a value is masked."""
    array = np.asarray(value)
    if np.ma.is_masked(value):
        raise SchemaError(f"feature {feature.name!r}: some of its values are masked")
    if isinstance(value, (list, tuple)) and array.dtype.kind == "f":
        given = np.array(value, object).reshape(-1).tolist()
        plain = [each.item() if isinstance(each, np.generic) else each for each in given]
        for number, stored in zip(plain, array.reshape(-1).tolist(), strict=True):
            if isinstance(number, int) and number != stored:
                raise SchemaError(f"feature {feature.name!r}: {array.dtype} cannot hold {number}")
    return array


def _texts(feature: Feature, value: Any) -> Any:
    if feature.shape is None and isinstance(value, (list, tuple)) and not value:
        return value
    actual = _feature(feature.name, value)
    is_one = feature.shape is None and actual.shape == ()
    is_row = actual.shape is None and feature.shape == (len(value),)
    if actual.dtype != "bytes" or (actual.shape != feature.shape and not is_one and not is_row):
        raise _misfit(feature, actual.dtype, actual.shape)
    return value


def _exact(feature: Feature, array: NDArray[Any]) -> NDArray[Any]:
    """Returns the numbers in the feature's dtype. SchemaError if a number would change."""
    # NumPy has no bfloat16: such arrays are uint16.
    carrier = "uint16" if feature.dtype == "bfloat16" else feature.dtype
    name = _name_of(array.dtype)
    if name in (feature.dtype, carrier):
        return array
    if not array.size:
        return array.astype(carrier)
    ranks = [_RANKS.get(kind, 0) for kind in (array.dtype.kind, np.dtype(carrier).kind)]
    if array.dtype.kind == "O":
        raise SchemaError(
            f"feature {feature.name!r}: {feature.dtype} cannot hold {array.tolist()!r:.99}"
        )
    if not 0 < ranks[0] <= ranks[1] or feature.dtype == "bfloat16":
        raise _misfit(feature, name, array.shape)
    with np.errstate(all="ignore"):
        made = array.astype(carrier)
        same = (made.astype(array.dtype) == array) & ((made < 0) == (array < 0))
        if ranks[0] < ranks[1] == _RANKS["f"]:
            same &= np.abs(made) <= 2.0 ** (np.finfo(carrier).nmant + 1)
    if not (same | (array != array)).all():
        changed = array[~same].flat[0]
        raise SchemaError(
            f"feature {feature.name!r}: record has {name} {changed}, which {feature.dtype} cannot hold"
        )
    return made


def _misfit(feature: Feature, dtype: str, shape: tuple[int, ...] | None) -> SchemaError:
    is_longer = dtype == feature.dtype and (shape is None or len(shape) < 2)
    return SchemaError(
        f"feature {feature.name!r}: record has {dtype}{dims(shape)}, "
        f"the schema says {feature.dtype}{dims(feature.shape)}"
        f"{_declare_ragged(feature) if is_longer else ''}"
    )


def _declare_ragged(feature: Feature) -> str:
    """Returns advice for a record with more or fewer values; "" if a list would lose the values' shape."""
    if feature.shape is None or len(feature.shape) > 1:
        return ""
    return _declare(replace(feature, shape=None, optional=False))


def _declare(*features: Feature) -> str:
    """Returns the advice to declare features, with YAML to paste; "" if there are no features."""
    return f"; add source.features: {{{', '.join(map(yaml_of, features))}}}" if features else ""


def yaml_of(feature: Feature) -> str:
    """Returns the line of `source.features` that declares a feature."""
    words = [f"dtype: {feature.dtype}"]
    if feature.shape != ():
        words.append(f"shape: {json.dumps([None] if feature.shape is None else feature.shape)}")
    words += ["optional: true"] * feature.optional
    is_plain = (
        re.fullmatch(r"[A-Za-z_]\w*", feature.name, re.ASCII) and feature.name.lower() not in _WORDS
    )
    return f"{feature.name if is_plain else json.dumps(feature.name)}: {{{', '.join(words)}}}"
