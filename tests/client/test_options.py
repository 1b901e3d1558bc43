"""What is refused when a loader or a set is made, and not in the middle of a pass."""

import re

import numpy as np
import pytest

from cachecd_client._core import encode_example
from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.files.file_set import FileSet
from cachecd_client.schema import Feature, Schema
from tests.client.foreign import put

N = 103


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0, expected at least 1"),
        ({"batch_size": 2.5}, "batch_size=2.5, expected a whole number"),
        ({"rank": 2, "world": 2}, "rank=2, world=2: expected 0 <= rank < world"),
        ({"rank": 0}, "rank=0, world=None: expected both, or neither"),
        ({"seed": 2**64}, f"expected at most {2**64 - 1}"),
        ({"shuffle": "no"}, "shuffle='no', expected True or False"),
        ({"ids": "yes"}, "ids='yes', expected True or False"),
        ({"seed": -1}, "seed=-1, expected at least 0"),
        ({"threads": -1}, "threads=-1, expected at least 0"),
        ({"drop_last": True, "pad_last": True}, "drop_last=True, pad_last=True"),
        ({"on_corrupt": "ignore"}, "expected 'replace' or 'raise'"),
        ({"features": "label"}, "expected a list of names: ['label']"),
        (
            {"batch_size": 60, "rank": 0, "world": 2},
            "103 records across 2 ranks make no batch of 60: choose a smaller batch_size",
        ),
    ],
)
def test_a_bad_option_is_refused_when_the_loader_is_made(files, options, message):
    with pytest.raises(CallerError, match=re.escape(message)):
        files.numpy(**{"batch_size": 1, **options})


def test_an_optional_feature_needs_a_default_or_is_left_out(tmp_path):
    schema = Schema(
        (Feature("id", "int64", "int64", ()), Feature("x", "int64", "int64", (), optional=True))
    )
    files = FileSet(
        put(tmp_path / "a", [encode_example({"id": 1, "x": 2}), encode_example({"id": 3})]),
        schema=schema,
    )
    with pytest.raises(
        SchemaError, match=r"feature 'x' is optional: give default={'x': ...}, or features"
    ):
        files.numpy(1)
    loader = files.numpy(2, shuffle=False, default={"x": 7})
    assert next(iter(loader))["x"].tolist() == [2, 7]
    assert not loader.schema["x"].optional
    assert [*next(iter(files.numpy(2, features=["id"])))] == ["id"]


def test_numbers_of_numpy_are_numbers(files):
    loader = files.numpy(np.int64(10), seed=np.uint8(3), shuffle=np.True_)
    assert loader.state_dict() == files.numpy(10, seed=3).state_dict()
    assert {type(value) for value in loader.state_dict().values()} <= {int, bool, str, type(None)}


def test_an_unknown_option_is_a_type_error_that_lists_those_there_are(files):
    with pytest.raises(
        TypeError, match=r"'drop_remainder'; a loader takes batch_size, .* drop_last"
    ):
        files.numpy(batch_size=1, drop_remainder=True)


def test_a_bad_option_of_a_set_and_a_set_of_no_records_are_refused(tmp_path, files):
    with pytest.raises(CallerError, match="window=-1, expected at least 0"):
        FileSet(files.files, window=-1)
    with pytest.raises(CallerError, match=r"schema=.*'label'.*expected a Schema"):
        FileSet(files.files, schema={"label": "int64"})
    nothing = FileSet(put(tmp_path / "a", []), schema=files.schema)
    with pytest.raises(CallerError, match="the set has no records"):
        nothing.numpy(batch_size=1)
