"""What records a schema takes, and in which form they are stored."""

from __future__ import annotations

import numpy as np
import pytest

from cachecd.sampler.encoding import encode
from cachecd_client._core import decode_example
from cachecd_client.errors import SchemaError
from cachecd_client.schema import Feature, Schema

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


@pytest.mark.parametrize("value", [np.zeros((2, 2), np.int64), np.zeros(2, np.float32)])
def test_what_no_list_of_the_kind_holds_is_an_error_that_names_the_feature(value):
    with pytest.raises(SchemaError, match="'i'"):
        encode(RAGGED, {"i": value})


def test_raw_arrays_are_stored_in_little_endian_whatever_their_order():
    schema = Schema((Feature("a", "bytes", "int32", (2, 2), raw=True),))
    array = np.arange(4, dtype=">i4").reshape(2, 2).T
    [stored] = decode_example(encode(schema, {"a": array}))["a"][1]
    assert np.frombuffer(stored, "<i4").tolist() == [0, 2, 1, 3]
