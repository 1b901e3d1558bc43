"""The options cast, pad, one_hot and default: what loaders deliver, and what they refuse."""

import re

import numpy as np
import pytest

from cachecd.sampler.encoding import encode, infer
from cachecd_client import _core
from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.files.file_set import FileSet
from cachecd_client.schema import Feature, Schema
from tests.client.records import write
from tests.frameworks import torch

N = 24
CLASSES = tuple(f"class {n}" for n in range(N))


def first(loader):
    return next(iter(loader))


def whole(files, **options):
    return first(files.numpy(batch_size=N, shuffle=False, **options))


def described(**features):
    """A schema of what `infer` makes of the values, or of Features as they are."""
    return Schema(
        tuple(
            value if isinstance(value, Feature) else infer({name: value})[name]
            for name, value in features.items()
        )
    )


# What is delivered


def test_numbers_are_delivered_in_the_dtype_asked_for(files):
    plain = whole(files)
    batch = whole(files, cast={"image": "float32", "label": "int32", "vector": "float64"})
    for name, dtype in {"image": "float32", "label": "int32", "vector": "float64"}.items():
        assert batch[name].dtype == np.dtype(dtype)
        np.testing.assert_array_equal(batch[name], plain[name].astype(dtype))
    assert batch["bits"].dtype == np.uint16  # untouched
    for dtype in (np.float16, torch.float16):
        assert whole(files, cast={"image": dtype})["image"].dtype == np.float16


def test_a_ragged_list_is_padded_and_its_lengths_are_added(files):
    batch = whole(files, pad={"many": 2})
    rows = [[n] * (n % 4) for n in range(N)]
    assert batch["many"].tolist() == [[*row, 0, 0][:2] for row in rows]
    assert batch["_many_length"].dtype == np.int64
    assert batch["_many_length"].tolist() == [min(len(row), 2) for row in rows]
    assert "_many_length" not in whole(files)


def test_a_label_becomes_one_hot(files):
    batch = whole(files, one_hot={"label": N})
    assert batch["label"].dtype == np.float32
    np.testing.assert_array_equal(batch["label"], np.eye(N))
    narrow = first(
        files.torch(batch_size=N, shuffle=False, one_hot={"label": N}, cast={"label": "uint8"})
    )
    assert torch.equal(narrow["label"], torch.eye(N, dtype=torch.uint8))


def test_the_classes_may_be_the_schemas(tmp_path):
    schema = described(label=Feature("label", "int64", "int64", (), classes=("cat", "dog")))
    path = write(tmp_path / "a", [encode(schema, {"label": 1})], schema)
    loader = FileSet(path).numpy(batch_size=1, one_hot={"label": True})
    assert first(loader)["label"].tolist() == [[0, 1]]
    assert loader.schema["label"].classes == ("cat", "dog")


# default


def sparse(folder, feature, value):
    """Three records of which the second alone has the feature."""
    schema = Schema((feature, Feature("n", "int64", "int64", ())))
    whole, without = encode(schema, {feature.name: value, "n": 1}), _core.encode_example({"n": 0})
    return FileSet(write(folder / "a", [without, whole, without], schema))


FLOAT = Feature("x", "float", "float32", ())
VECTOR = Feature("x", "float", "float32", (2,))
IMAGE = Feature("x", "bytes", "uint8", (2, 2), raw=True)
BITS = Feature("x", "bytes", "bfloat16", (2,), raw=True)
RAGGED = Feature("x", "int64", "int64", None)


@pytest.mark.parametrize(
    ("feature", "value", "default", "expected"),
    [
        (FLOAT, 2.0, 0.5, 0.5),
        (VECTOR, np.ones(2, np.float32), [1, 2.5], [1, 2.5]),
        (IMAGE, np.ones((2, 2), np.uint8), 255, [[255, 255], [255, 255]]),
        (BITS, np.ones(2, np.uint16), [1, -2], [0x3F80, 0xC000]),
        (RAGGED, [9], [1, 2, 3], [1, 2, 3]),
        (Feature("x", "bytes", "bytes", ()), b"a", "tëxt", "tëxt".encode()),
        (Feature("x", "bytes", "bytes", None), [b"a"], [b"b", "c"], [b"b", b"c"]),
    ],
)
def test_a_default_stands_in_for_what_a_record_lacks(tmp_path, feature, value, default, expected):
    batch = whole3(sparse(tmp_path, feature, value), default={"x": default})
    for row in (0, 2):
        np.testing.assert_array_equal(batch["x"][row], expected)
    np.testing.assert_array_equal(batch["x"][1], value)


def whole3(files, **options):
    return first(files.numpy(batch_size=3, shuffle=False, **options))


def test_without_a_default_the_record_is_named(tmp_path):
    files = sparse(tmp_path, FLOAT, 2.0)
    where = re.escape(f"{files.files[0]}: record at byte 0: feature 'x'")
    with pytest.raises(SchemaError, match=f"{where}: the record has no such feature.* a default"):
        whole3(files)


# What is refused, before anything is read


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"cast": {"imagee": "int8"}},
            "cast names feature 'imagee'; the delivered features are bits, do",
        ),
        ({"cast": {"key": "uint8"}}, "cast: feature 'key' is bytes, only numbers can be cast"),
        ({"pad": {"label": 3}}, r"feature 'label' is int64\[\], expected a ragged list of numbers"),
        ({"one_hot": {"vector": 3}}, r"'vector' is float32\[2\], expected a scalar integer"),
        ({"one_hot": {"label": True}}, "names no classes of this feature: give the number of cl"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused(files, options, message):
    with pytest.raises(SchemaError, match=message):
        files.numpy(batch_size=1, **options)


def test_a_dtype_that_the_features_kind_has_not_is_refused(files):
    wrong = Schema((Feature("label", "int64", "int32", ()),))
    with pytest.raises(SchemaError, match=r"'label' has dtype int32 .* int64 has int64: .* cast="):
        FileSet(files.files, schema=wrong).numpy(batch_size=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cast": "float32"}, "cast='float32', expected a dict of feature name -> value"),
        ({"cast": {"image": "float23"}}, "'image': 'float23'}: unknown dtype, expected one of bfl"),
        ({"pad": {"many": 0}}, r"expected a length of at least 1, or \(length, value\)"),
        ({"pad": {"many": (3, -1)}, "cast": {"many": "uint8"}}, "-1 is not a uint8"),
        ({"one_hot": {"label": 0}}, "expected the number of classes, or True"),
        ({"default": {"label": 1.5}}, r"is int64\[\], expected numbers that int64 can hold"),
        ({"default": {"image": [1, 2]}}, r"one number, or an array of shape \(2, 3\)"),
        ({"default": {"many": 1}}, "expected a list, because the feature is ragged in the schema"),
        ({"default": {"names": b"a"}}, "expected a list of bytes"),
        ({"default": {"key": 1}}, r"the feature is bytes\[\], expected bytes"),
        ({"default": {"label": 9}, "one_hot": {"label": 9}}, "one_hot has the classes 0 to 8"),
    ],
)
def test_an_impossible_option_is_refused_when_the_loader_is_made(files, options, message):
    with pytest.raises(CallerError, match=message):
        files.numpy(batch_size=1, **options)
