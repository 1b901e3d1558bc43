"""BatchReader: features cast, padded, made one-hot or given a default while a batch is made."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd_client import _core
from cachecd_client._core import BatchReader
from cachecd_client.errors import SchemaError
from tests.core.shards import LONG, batches, flip, reader_of, write

INTS = ("x", "int64", "int64")
FLOATS = ("x", "float", "float32")
LARGE = 200_001  # more than is read at a time, and no multiple of it


def shard(path, values):
    """A record for each value, its feature `x`; one without that for None."""
    return write(
        path, [_core.encode_example({} if v is None else {"x": v, "y": b"other"}) for v in values]
    )


def read(path, feature, rows, **options):
    return read_padded(path, feature, rows, **options)[0]


def read_padded(path, feature, rows, **options):
    """(values, lengths) of the padded column `x` of the first `rows` records."""
    reader = reader_of(path, [feature], batch_size=rows, shuffle=False, **options)
    (batch,) = batches(reader)
    return batch["x"], batch.get("_x_length")


def raw(dtype, shape, **options):
    return ("x", "bytes", dtype, shape, True, options)


# cast


@pytest.mark.parametrize(
    ("source", "target"),
    [("bool", "float32"), ("uint8", "float16"), ("int16", "float64"), ("float64", "int32")],
)
@pytest.mark.parametrize("shape", [(), (2, 3), (0,)])
def test_arrays_are_cast_as_numpy_does(tmp_path, source, target, shape):
    values = (np.random.default_rng(1).random((5, *shape)) * 99).astype(source)
    path = shard(tmp_path / "a", [v.tobytes() for v in values])
    column = read(path, raw(source, shape, cast=target), 5)
    assert (column.dtype, column.shape) == (np.dtype(target), (5, *shape))
    assert column.tolist() == values.astype(target).tolist()


@pytest.mark.parametrize("target", ["int16", "float64"])
def test_raw_lists_of_any_length_keep_their_values_or_are_cast(tmp_path, target):
    values = [np.arange(n, dtype=np.int16) - 3 for n in (2, 0, LARGE, 5, LARGE + 1)]
    path = shard(tmp_path / "a", [v.tobytes() for v in values])
    numbers, splits = read(path, raw("int16", None, cast=target), 5, on_corrupt="raise")
    assert numbers.dtype == np.dtype(target)
    assert splits.tolist() == np.cumsum([0, *map(len, values)]).tolist()
    assert numbers.tolist() == np.concatenate(values).tolist()
    dense, lengths = read_padded(path, raw("int16", None, cast=target, pad=(LARGE, ONE[target])), 5)
    assert lengths.tolist() == [2, 0, LARGE, 5, LARGE]
    for row, value in zip(dense, values, strict=True):
        assert row.tolist() == [*value, *[1] * LARGE][:LARGE]


ONE = {name: np.ones(1, name).tobytes() for name in ("int16", "float64")}


@pytest.mark.parametrize("target", ["uint8", "float16", "float32", "float64", "bfloat16"])
def test_large_arrays_are_cast_and_verified(tmp_path, target):
    values = np.random.default_rng(2).integers(0, 256, (3, LARGE), np.uint8)
    path = shard(tmp_path / "a", [v.tobytes() for v in values])
    column = read(path, raw("uint8", (LARGE,), cast=target), 3, on_corrupt="raise")
    expected = _core.convert(values, "uint8", target).reshape(3, LARGE)
    np.testing.assert_array_equal(column, expected)
    # One altered byte, wherever it lies, and the next record stands in for this one.
    for where in (50, LARGE // 2, LARGE - 1):
        flip(path, where)
        reader = reader_of(path, [raw("uint8", (LARGE,), cast=target)], batch_size=3, shuffle=False)
        replaced = reader.next()["x"]
        assert len(reader.corrupt) == 1
        np.testing.assert_array_equal(replaced, expected[[1, 1, 2]])
        flip(path, where)


@pytest.mark.parametrize("stored", [INTS, FLOATS])
@pytest.mark.parametrize("target", ["uint8", "int32", "int64", "float16", "float32"])
def test_lists_are_cast_dense_and_ragged(tmp_path, stored, target):
    rows = [np.arange(n, n + 1300).astype(stored[2]) % 250 for n in range(3)]
    path = shard(tmp_path / "a", rows)
    expected = np.stack(rows).astype(target)
    dense = read(path, (*stored, (13, 100), False, {"cast": target}), 3)
    assert (dense.dtype, dense.shape) == (np.dtype(target), (3, 13, 100))
    assert dense.reshape(3, -1).tolist() == expected.tolist()
    values, splits = read(path, (*stored, None, False, {"cast": target}), 3)
    assert (values.dtype, splits.tolist()) == (np.dtype(target), [0, 1300, 2600, 3900])
    assert values.tolist() == expected.ravel().tolist()


# pad

ROWS = [[1, 2, 3], [], [4, 5, 6, 7, 8], [9, 10, 11, 12], None]


@settings(max_examples=40 if LONG else 15)
@given(
    st.lists(st.lists(st.integers(0, 2**40), max_size=40), min_size=1, max_size=9),
    st.integers(1, 50),
)
def test_padding_is_that_of_a_loop_in_python(tmp_path_factory, rows, length):
    path = shard(tmp_path_factory.mktemp("padded") / "a", rows)
    options = {"pad": (length, bytes(8))}
    values, lengths = read_padded(path, (*INTS, None, False, options), len(rows))
    assert values.tolist() == [row[:length] + [0] * (length - len(row)) for row in rows]
    assert lengths.tolist() == [min(len(row), length) for row in rows]


# one_hot


@pytest.mark.parametrize("label", [-1, 4, 2**40, -(2**63)])
def test_a_class_beyond_those_there_are_names_feature_file_and_offset(tmp_path, label):
    path = shard(tmp_path / "a", [0, label])
    offset = int(_core.scan(str(path))[1])
    with pytest.raises(SchemaError) as caught:
        read(path, (*INTS, (), False, {"one_hot": 4}), 2)
    assert str(caught.value) == (
        f"{path}: record at byte {offset}: feature 'x': the record has class {label}, "
        "one_hot has 0 to 3"
    )


# default


def test_a_large_default_stands_in_in_a_large_record(tmp_path):
    """Its bytes are not the record's, whose own are copied while they are verified."""
    records = [{"x": bytes([n]) * LARGE, "z": bytes([n]) * LARGE} for n in range(3)]
    del records[1]["x"]
    path = write(tmp_path / "a", [_core.encode_example(r) for r in records])
    features = [
        raw("uint8", (LARGE,), default=_core.encode_example({"x": b"\xfa" * LARGE})),
        ("z", "bytes", "uint8", (LARGE,), True),
    ]
    reader = reader_of(path, features, batch_size=3, shuffle=False)
    (batch,) = batches(reader)
    for row, first in enumerate((0, 0xFA, 2)):
        assert set(batch["x"][row].tolist()) == {first}
        assert set(batch["z"][row].tolist()) == {row}


# What cannot be


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ((*INTS, (), False, {"cast": "float8"}), "unknown dtype 'float8'"),
        (("x", "bytes", "bytes", (), False, {"cast": "uint8"}), "are for numbers, not for bytes"),
        ((*INTS, (2,), False, {"pad": (2, bytes(8))}), "pad is for ragged lists"),
        ((*INTS, None, False, {"pad": (2, bytes(4))}), "has 4 bytes, expected 8"),
        ((*INTS, (2,), False, {"one_hot": 2}), "one_hot is for a scalar integer"),
        ((*INTS, (), False, {"default": b"\xff"}), "the default does not fit: .*cut short"),
        ((*INTS, (), False, {"default": _core.encode_example({"y": 1})}), "the default lacks it"),
        ((*INTS, (), False, {"default": _core.encode_example({"x": 1.0})}), "has a float list"),
    ],
)
def test_an_option_that_the_feature_cannot_have_is_refused_at_once(feature, message):
    with pytest.raises(SchemaError, match=message):
        BatchReader([], [feature], batch_size=1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"casts": "int8"}, ValueError, "unknown option 'casts'"),
        ({"one_hot": 0}, ValueError, "at least 1"),
        ({"pad": 3}, TypeError, "to pad with"),
        ({"cast": np.float32}, TypeError, "name of a dtype"),
        (None, TypeError, "a dict of options"),
    ],
)
def test_options_of_the_wrong_type_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        BatchReader([], [(*INTS, None, False, options)], batch_size=1)


def test_what_a_padded_list_adds_is_a_column_like_others():
    padded = (*INTS, None, False, {"pad": (2, bytes(8))})
    with pytest.raises(SchemaError, match="two columns have the name '_x_length'"):
        BatchReader([], [("_x_length", *INTS[1:], (), False), padded], batch_size=1)
