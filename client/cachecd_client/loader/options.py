"""Checks the options of a loader when it is made. The core applies the options to each batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

import cachecd_client._core as _core
from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.loader.image import Image
from cachecd_client.schema import LIST_DTYPES, NUMERIC_DTYPES, Feature, Schema

if TYPE_CHECKING:
    from cachecd_client._core import FeatureOptions

Batch = dict[str, Any]
Prepare = Callable[[Batch, np.random.Generator], Mapping[str, Any]]


class Options(TypedDict, total=False):
    """The options of a loader. `Loader` explains them."""

    shuffle: bool | None
    seed: int | None
    reshuffle: bool
    drop_last: bool | None
    pad_last: bool | None
    threads: int
    prefetch_bytes: int | None
    on_corrupt: Literal["replace", "raise"]
    features: Sequence[str] | None
    cast: Mapping[str, Any]  # a dtype: its name, or NumPy's, torch's, TensorFlow's or JAX's object
    pad: Mapping[str, int | Sequence[float]]  # a length, or (length, value)
    one_hot: Mapping[str, int]  # a number of classes, or True for the schema's
    default: Mapping[str, Any]
    decode: Mapping[str, Image]
    rename: Mapping[str, str]
    prepare: Prepare | None
    label: str | None
    ids: bool
    rank: int | None
    world: int | None


class TfOptions(TypedDict, total=False):
    """The options of a stock tf.data pipeline. `FileSet.tf_dataset` explains them."""

    label: str | None
    shuffle: bool | None
    seed: int | None
    drop_last: bool | None
    pad_last: bool | None
    features: Sequence[str] | None
    rank: int | None
    world: int | None


def refuse_unknown(options: Mapping[str, object], kind: type, takes: str) -> None:
    """Raises TypeError for an option that the TypedDict `kind` lacks. `takes`: the beginning of the list of
    options in the message."""
    if unknown := options.keys() - kind.__annotations__.keys():
        raise TypeError(
            f"unknown option {sorted(unknown)[0]!r}; {takes}, {', '.join(kind.__annotations__)}"
        )


def with_label(options: Options, stores: Callable[[str], bool]) -> Options:
    """Returns these options; adds the label to `features` if a list of features is given. `stores`: whether
    records have a feature with this name; if not, `prepare` may make the label."""
    label, features, rename = options.get("label"), options.get("features"), options.get("rename")
    # The loader refuses other types.
    if label is None or features is None or isinstance(features, str):
        return options
    names = rename.items() if isinstance(rename, Mapping) else ()
    stored = next((name for name, new in names if new == label), label)
    if stored in features or (options.get("prepare") and not stores(stored)):
        return options
    return {**options, "features": [*features, stored]}


_OF_FEATURES = "cast", "pad", "decode", "one_hot", "default", "rename"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A feature as stored in records, as delivered in batches, and the core's options for it."""

    stored: Feature
    delivered: Feature
    options: FeatureOptions


def deliveries(schema: Schema, options: Options) -> tuple[Delivery, ...]:
    """Returns a delivery for each selected feature, in order. SchemaError for an unknown feature, or a
    feature that cannot have an option; CallerError for an impossible value of an option."""
    features, mask = options.get("features"), schema.mask
    schema = schema if features is None else schema.select(features)
    given: dict[str, Any] = {name: options.get(name, {}) for name in _OF_FEATURES}
    for option, values in given.items():
        if not isinstance(values, Mapping):
            raise CallerError(f"{option}={values!r}, expected a dict of feature name -> value")
        for name in values:
            if name not in schema.names:
                raise SchemaError(
                    f"{option} names feature {name!r}; the delivered features are "
                    f"{', '.join(schema.names) or 'none'}"
                )
    made = tuple(
        _delivery(f, {option: v[f.name] for option, v in given.items() if f.name in v})
        for f in schema.features
    )
    for each in made:
        if each.stored.name == mask:
            each.options["count_zeros"] = True
    for one, other in combinations(made, 2):
        if one.delivered.name == other.delivered.name:
            raise CallerError(
                f"rename: the features {one.stored.name!r} and {other.stored.name!r} would both be "
                f"delivered as {one.delivered.name!r}"
            )
    decode: Mapping[str, Image] = given["decode"]
    if len({image.view for image in decode.values()}) > 1:
        raise CallerError(
            f"decode: {', '.join(decode)} would show different parts of a picture: give all of them the "
            "same crop, scale, ratio and flip. Also give them the same size and resize, or scale both alike"
        )
    return made


def _delivery(stored: Feature, given: Mapping[str, Any]) -> Delivery:
    if not stored.raw and stored.dtype != (dtype := LIST_DTYPES[stored.kind]):
        raise SchemaError(
            f"feature {stored.name!r} has dtype {stored.dtype} in the schema, but a list of kind "
            f"{stored.kind} has {dtype}: write {dtype} there, and use cast={{{stored.name!r}: ...}}"
        )
    if stored.optional and "default" not in given:
        raise SchemaError(
            f"feature {stored.name!r} is optional: give default={{{stored.name!r}: ...}}, or "
            "features=[...] without it"
        )
    delivered = replace(stored, optional=False)
    options: FeatureOptions = {}
    if "decode" in given:
        options["image"] = _image(stored, given).for_reader()
        delivered = replace(delivered, dtype="uint8", shape=given["decode"].shape)
    if "one_hot" in given:
        options["one_hot"] = classes = _classes(stored, given["one_hot"])
        delivered = replace(delivered, dtype="float32", shape=(classes,))
    if "cast" in given:
        options["cast"] = dtype = _dtype(stored, given["cast"])
        delivered = replace(delivered, dtype=dtype)
    if "pad" in given:
        length, value = _padding(stored, given["pad"], delivered.dtype)
        options["pad"] = length, value
        delivered = replace(delivered, shape=(length,))
    if "default" in given:
        options["default"] = _example(stored, given["default"])
        if "one_hot" in options and not 0 <= (label := int(given["default"])) < classes:
            raise CallerError(
                f"default={{{stored.name!r}: {label}}}: one_hot has the classes 0 to {classes - 1}"
            )
    if "rename" in given:
        options["name"] = name = given["rename"]
        if not isinstance(name, str) or not name:
            raise CallerError(f"rename={{{stored.name!r}: {name!r}}}: expected a name")
        delivered = replace(delivered, name=name)
    return Delivery(stored, delivered, options)


def _image(feature: Feature, given: Mapping[str, Any]) -> Image:
    image = given["decode"]
    if not isinstance(image, Image):
        raise CallerError(f"decode={{{feature.name!r}: {image!r}}}: expected an Image")
    if "cast" in given:
        raise CallerError(
            f"feature {feature.name!r} has decode and cast: convert and normalize the uint8 "
            "pixels on the device, because a quarter of the bytes is then copied"
        )
    if taken := sorted({"pad", "one_hot", "default"} & given.keys()):
        raise CallerError(f"feature {feature.name!r} has decode and {taken[0]}: expected one")
    shape = feature.shape or ()
    has_axes = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3))
    if feature.raw and feature.dtype == "uint8" and has_axes and 0 not in shape:
        return image
    if feature.dtype != "bytes" or feature.shape != ():
        raise SchemaError(
            f"decode: feature {feature.name!r} is {_described(feature)}, expected an encoded picture "
            "(bytes), or pixels: uint8 [height, width, 1 or 3] or [height, width]"
        )
    if not _core.image_formats():
        raise CallerError(
            "decode: this cachecd-client was built without libjpeg-turbo and libpng: install "
            "libjpeg-dev and libpng-dev (Debian's names) and build it again, or install a wheel"
        )
    return image


def _dtype(feature: Feature, wanted: Any) -> str:
    if feature.dtype == "bytes":
        raise SchemaError(f"cast: feature {feature.name!r} is bytes, only numbers can be cast")
    for name in (wanted, getattr(wanted, "name", None), str(wanted).removeprefix("torch.")):
        if isinstance(name, str) and name in NUMERIC_DTYPES:
            return name
    try:
        # Not None, which NumPy takes for float64.
        name = np.dtype(wanted).name if wanted is not None else ""
    except TypeError:
        name = ""
    if name not in NUMERIC_DTYPES:
        raise CallerError(
            f"cast={{{feature.name!r}: {wanted!r}}}: unknown dtype, expected one of "
            f"{', '.join(sorted(NUMERIC_DTYPES))}"
        )
    return name


def _classes(feature: Feature, wanted: Any) -> int:
    if feature.shape != () or not feature.dtype.startswith(("int", "uint", "bool")):
        raise SchemaError(
            f"one_hot: feature {feature.name!r} is {_described(feature)}, expected a scalar integer"
        )
    if wanted is True:
        if not feature.classes:
            raise SchemaError(
                f"one_hot={{{feature.name!r}: True}}: the schema names no classes of this feature: give "
                "the number of classes"
            )
        return len(feature.classes)
    if not _is_count(wanted):
        raise CallerError(
            f"one_hot={{{feature.name!r}: {wanted!r}}}: expected the number of classes, or True for the "
            "classes that the schema names"
        )
    return int(wanted)


def _padding(feature: Feature, wanted: Any, dtype: str) -> tuple[int, bytes]:
    pair = isinstance(wanted, (tuple, list)) and len(wanted) == 2
    length, value = wanted if pair else (wanted, 0)
    if feature.shape is not None or feature.dtype == "bytes":
        raise SchemaError(
            f"pad: feature {feature.name!r} is {_described(feature)}, expected a ragged list of numbers"
        )
    if not _is_count(length):
        raise CallerError(
            f"pad={{{feature.name!r}: {wanted!r}}}: expected a length of at least 1, or (length, value)"
        )
    numbers = _numbers(value, dtype)
    if numbers is None or numbers.ndim:
        raise CallerError(f"pad={{{feature.name!r}: {wanted!r}}}: {value!r} is not a {dtype}")
    return int(length), numbers.tobytes()


def _example(feature: Feature, value: Any) -> bytes:
    """Returns a serialized Example with the default, as a record would store it."""
    if feature.dtype == "bytes":
        return _core.encode_example({feature.name: _texts(feature, value)})
    numbers = _numbers(value, feature.dtype)
    if numbers is None:
        raise _misfit(feature, value, f"numbers that {feature.dtype} can hold")
    if feature.shape is None:
        if numbers.ndim != 1:
            expected = (
                "a list, because the feature is ragged in the schema; FileSet(schema=) changes that"
            )
            raise _misfit(feature, value, expected)
    elif numbers.ndim == 0:
        numbers = np.full(feature.shape, numbers)
    elif numbers.shape != feature.shape:
        raise _misfit(feature, value, f"one number, or an array of shape {feature.shape}")
    stored = numbers.tobytes() if feature.raw else numbers.ravel()
    return _core.encode_example({feature.name: stored})


def _texts(feature: Feature, value: Any) -> list[Any]:
    text = (bytes, bytearray, memoryview, str)
    count = None if feature.shape is None else prod(feature.shape)
    if isinstance(value, text):
        if count is None:
            raise _misfit(
                feature, value, "a list of bytes, because the feature is ragged in the schema"
            )
        return [value] * count
    if feature.shape == ():
        raise _misfit(feature, value, "bytes")
    if not isinstance(value, Sequence) or not all(isinstance(one, text) for one in value):
        raise _misfit(feature, value, "a list of bytes")
    if count is not None and len(value) != count:
        raise _misfit(feature, value, f"one value of bytes, or a list of {count}")
    return list(value)


def _numbers(value: Any, dtype: str) -> NDArray[Any] | None:
    """Returns `value` as an array of the dtype, for bfloat16 its bits; None if a number does not fit. A
    number that a float type rounds fits; a number that becomes infinite does not."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None
    if array.dtype.name == "bfloat16":  # from ml_dtypes, which JAX and TensorFlow use
        array = array.astype(np.float32)
    if array.size == 0 and isinstance(value, Sequence):
        array = array.astype(np.int64)  # NumPy converts an empty list to floats
    if array.dtype.kind not in "biuf":
        return None
    with np.errstate(all="ignore"):
        converted = array.astype("float32" if dtype == "bfloat16" else dtype)
        if converted.dtype.kind == "f":
            fits = np.isfinite(converted) | ~np.isfinite(array)
        else:
            fits = converted == array
    if not fits.all():
        return None
    if dtype == "bfloat16":
        bits = _core.convert(converted.tobytes(), "float32", "bfloat16")
        return bits.reshape(converted.shape)
    return converted


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and value is not True and bool(value >= 1)


def _described(feature: Feature) -> str:
    if feature.shape is None:
        return f"a ragged list of {feature.dtype}"
    return f"{feature.dtype}{list(feature.shape)}"


def _misfit(feature: Feature, value: Any, expected: str) -> CallerError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:80]}..."
    return CallerError(
        f"default={{{feature.name!r}: {shown}}}: the feature is {_described(feature)}, "
        f"expected {expected}"
    )
