"""BatchReader: what columns hold, of every kind of feature, and what does not fit."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd_client import _core
from cachecd_client._core import BatchReader
from cachecd_client.errors import SchemaError
from tests.core.shards import LONG, batches, reader_of, write

RAW_DTYPES = ["bool", "float16", "float32", "float64"]
RAW_DTYPES += [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


def read(path, feature, rows, **options):
    reader = reader_of(path, [feature], batch_size=rows, shuffle=False, **options)
    (batch,) = batches(reader)
    assert list(batch)[:1] == [feature[0]]
    return batch[feature[0]]


def shard(path, values):
    return write(path, [_core.encode_example({"x": v, "other": b"ignored" * 9}) for v in values])


def items(data, offsets):
    return [bytes(data[a:b]) for a, b in itertools.pairwise(offsets)]


# Kinds of columns


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(dtype, (2, 3)) for dtype in RAW_DTYPES]
    + [("uint16", shape) for shape in [(), (3,), (2, 0, 3), (1, 2, 3, 4)]],
)
def test_raw_arrays_keep_dtype_shape_and_bits(tmp_path, dtype, shape):
    source = np.random.default_rng(1)
    values = (source.random((4, *shape)) * 2).astype(dtype)
    path = shard(tmp_path / "a", [v.tobytes() for v in values])
    column = read(path, ("x", "bytes", dtype, shape, True), 4)
    assert (column.dtype, column.shape) == (np.dtype(dtype), (4, *shape))
    assert column.tobytes() == values.tobytes()


@pytest.mark.parametrize(("kind", "dtype"), [("int64", "int64"), ("float", "float32")])
@pytest.mark.parametrize("shape", [(), (6,), (2, 3)])
def test_lists_of_fixed_length_are_dense(tmp_path, kind, dtype, shape):
    values = np.arange(18, dtype=dtype).reshape(3, 6) - 9
    if shape == ():
        values = values[:, :1]
    path = shard(tmp_path / "a", list(values))
    column = read(path, ("x", kind, dtype, shape, False), 3)
    assert (column.dtype, column.shape) == (np.dtype(dtype), (3, *shape))
    assert column.reshape(3, -1).tolist() == values.tolist()


@settings(max_examples=30 if LONG else 12)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30),
            st.lists(st.binary(max_size=20), max_size=10),
            st.binary(max_size=100),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_any_mixture_of_lengths_comes_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("mixture") / "a"
    write(
        path,
        [_core.encode_example({"i": ints, "l": texts, "b": whole}) for ints, texts, whole in rows],
    )
    features = [
        ("b", "bytes", "bytes", (), False),
        ("l", "bytes", "bytes", None, False),
        ("i", "int64", "int64", None, False),
    ]
    reader = reader_of(path, features, batch_size=len(rows), shuffle=False)
    (batch,) = batches(reader)
    values, splits = batch["i"]
    data, offsets, lists = batch["l"]
    found = items(data, offsets)
    again = [
        (values[splits[n] : splits[n + 1]].tolist(), found[lists[n] : lists[n + 1]], whole)
        for n, whole in enumerate(items(*batch["b"]))
    ]
    assert again == rows


def test_rows_without_a_record_are_zero_or_empty(tmp_path):
    record = {
        "d": np.array([1, 2], np.float32),
        "b": b"bb",
        "k": ["x", "y"],
        "l": ["z"],
        "r": [5, 6],
    }
    record["w"] = b"\xff" * 6
    path = write(tmp_path / "a", [_core.encode_example(record)])
    features = [
        ("w", "bytes", "uint16", (3,), True),
        ("d", "float", "float32", (2,), False),
        ("b", "bytes", "bytes", (), False),
        ("k", "bytes", "bytes", (2,), False),
        ("l", "bytes", "bytes", None, False),
        ("r", "int64", "int64", None, False),
    ]
    # Twice over the same buffers, so that what is zero has been made so.
    for _ in range(2):
        reader = reader_of(path, features, batch_size=3, shuffle=False, last="pad")
        (batch,) = batches(reader)
        assert list(batch) == ["w", "d", "b", "k", "l", "r", "_valid"]
        assert batch["w"].tolist() == [[65535] * 3, [0] * 3, [0] * 3]
        assert batch["d"].tolist() == [[1, 2], [0, 0], [0, 0]]
        assert items(*batch["b"]) == [b"bb", b"", b""]
        assert items(*batch["k"]) == [b"x", b"y", b"", b"", b"", b""]
        assert batch["l"][2].tolist() == [0, 1, 1, 1]
        assert batch["r"][1].tolist() == [0, 2, 2, 2]


# What does not fit


@pytest.mark.parametrize(
    ("feature", "value", "message"),
    [
        (("y", "int64", "int64", (), False), 1, "feature 'y': the record has no such feature"),
        (("x", "int64", "int64", (), False), 1.5, "has a float list, the schema says a int64 list"),
        (("x", "float", "float32", None, False), b"a", "has a bytes list, .* a float list"),
        (("x", "int64", "int64", (), False), [1, 2], "has 2 values, the schema says 1"),
        (("x", "float", "float32", (2,), False), [1.0], "has 1 value, the schema says 2"),
        (("x", "bytes", "bytes", (3,), False), [b"a", b"b"], "has 2 values, the schema says 3"),
        (("x", "bytes", "uint8", (3,), True), b"ab", "an array of 2 bytes, the schema says 3"),
        (
            ("x", "bytes", "int32", None, True),
            bytes(6),
            "of 6 bytes, the schema says a multiple of 4",
        ),
        (("x", "bytes", "int32", None, True), [b"", b""], "has 2 values, the schema says 1"),
        (("x", "bytes", "uint8", (2,), True), [b"ab", b"ab"], "has 2 values, .* holds an array"),
    ],
)
def test_a_record_that_does_not_fit_names_feature_file_and_offset(
    tmp_path, feature, value, message
):
    path = write(tmp_path / "a", [_core.encode_example({"x": value})])
    for on_corrupt in ("replace", "raise"):
        reader = reader_of(path, [feature], batch_size=1, on_corrupt=on_corrupt)
        with pytest.raises(SchemaError, match=message) as caught:
            reader.next()
        assert str(caught.value).startswith(f"{path}: record at byte 0: feature '{feature[0]}'")


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (("x", "double", "float64", (), False), "kind 'double', expected"),
        (("x", "int64", "int32", (), False), "dtype 'int64', not 'int32'"),
        (("x", "bytes", "complex64", (), True), "unknown dtype 'complex64'"),
        (("x", "int64", "int64", (), True), "a raw array is of kind 'bytes'"),
        (("x", "int64", "int64", (-1,), False), "negative extent"),
    ],
)
def test_a_feature_that_cannot_be_is_refused_at_once(feature, message):
    with pytest.raises(SchemaError, match=f"feature 'x': .*{message}"):
        BatchReader([], [feature], batch_size=1)
