"""What records a schema takes, and in which form they are stored."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.sampler.encoding import encode
from cachecd_client._core import decode_example
from cachecd_client.errors import SchemaError
from cachecd_client.schema import NUMERIC_DTYPES, Feature, Schema

RAGGED = Schema(
    (
        Feature("b", "bytes", "bytes", None),
        Feature("f", "float", "float32", None),
        Feature("i", "int64", "int64", None),
    )
)


def test_what_is_ragged_may_be_missing_and_then_is_empty():
    assert decode_example(encode(RAGGED, {"i": [1, 2]})) == {"i": ("int64", [1, 2])}
    assert decode_example(encode(RAGGED, {})) == {}


def test_an_optional_feature_may_be_missing_and_another_may_not():
    schema = Schema(
        (Feature("a", "int64", "int64", ()), Feature("b", "int64", "int64", (), optional=True))
    )
    assert decode_example(encode(schema, {"a": 1})) == {"a": ("int64", [1])}
    with pytest.raises(SchemaError, match=r"missing \['a'\], extra \['c'\]"):
        encode(schema, {"c": 1})


@pytest.mark.parametrize("value", [np.zeros((2, 2), np.int64), np.zeros(2, np.float32)])
def test_what_no_list_of_the_kind_holds_is_an_error_that_names_the_feature(value):
    with pytest.raises(SchemaError, match="'i'"):
        encode(RAGGED, {"i": value})


_DTYPES = st.sampled_from(sorted(NUMERIC_DTYPES - {"bfloat16"}))
_NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([2**53 + 1, 2**63, 2**64 - 1, 16777217, 2049, 255, 256, -1, 0, 1]),
    st.floats(),
    st.sampled_from([0.1, 1e300, -1e39, 65505.0, 16777217.0, math.nan, math.inf]),
)


@given(_DTYPES, _DTYPES, st.lists(_NUMBERS, min_size=1, max_size=3), st.booleans())
def test_a_number_is_stored_as_it_is_or_its_record_is_refused(stored, given, numbers, is_scalar):
    try:
        with np.errstate(all="ignore"):
            value = np.array([dtype_of(given, number) for number in numbers], given)
    except OverflowError:
        return
    value = value[0] if is_scalar else value
    feature = feature_of(stored, None)
    try:
        encoded = encode(Schema((feature,)), {"x": value})
    except SchemaError:
        assert given != stored
        return
    [values] = decode_example(encoded).values()
    found = np.frombuffer(values[1][0], stored) if feature.raw else np.array(values[1], stored)
    for one, other in zip(found.tolist(), np.atleast_1d(value).tolist(), strict=True):
        assert one == other or (one != one and other != other), (one, other)


def dtype_of(dtype, number):
    return np.array(number).astype(dtype) if np.isfinite(number) else dtype_of(dtype, 0)


def feature_of(dtype, shape):
    if dtype in ("int64", "float32"):
        return Feature("x", "int64" if dtype == "int64" else "float", dtype, shape)
    return Feature("x", "bytes", dtype, shape, raw=True)


@pytest.mark.parametrize("value", [1e39, [1.0, 1e39], np.float64(0.1), Decimal("0.1"), 2**53 + 1])
@pytest.mark.parametrize("shape", [(), None])
def test_a_number_that_float32_cannot_hold_is_refused_and_named(value, shape):
    with pytest.raises((SchemaError, TypeError), match="'x'"):
        encode(Schema((feature_of("float32", shape),)), {"x": value})


def test_only_own_floats_of_python_are_rounded():
    for value in (0.1, [0.1]):
        encoded = encode(Schema((feature_of("float32", None),)), {"x": value})
        assert decode_example(encoded)["x"][1] == [np.float32(0.1)]
    wide = Schema((feature_of("float64", None),))
    assert decode_example(encode(wide, {"x": [0.1]}))["x"][1] == [np.float64(0.1).tobytes()]


def test_raw_arrays_are_stored_in_little_endian_whatever_their_order():
    schema = Schema((Feature("a", "bytes", "int32", (2, 2), raw=True),))
    array = np.arange(4, dtype=">i4").reshape(2, 2).T
    [stored] = decode_example(encode(schema, {"a": array}))["a"][1]
    assert np.frombuffer(stored, "<i4").tolist() == [0, 2, 1, 3]


@pytest.mark.parametrize(
    "value",
    [
        *([2**53 + 1, 0.5], (0.5, 2**53 + 1), [np.int64(2**53 + 1), np.float64(0.5)]),
        np.ma.masked_values([1.5, -9999.0], -9999),
    ],
)
@pytest.mark.parametrize("shape", [None, (2,)])
def test_numbers_are_not_rounded_or_unmasked_while_they_become_an_array(value, shape):
    schema = Schema((feature_of("float64", shape),))
    assert encode(schema, {"x": [1, 0.5]})
    assert encode(schema, {"x": np.ma.masked_values([1.5, 2.0], -9999)})
    with pytest.raises(SchemaError, match=r"cannot hold|masked"):
        encode(schema, {"x": value})
