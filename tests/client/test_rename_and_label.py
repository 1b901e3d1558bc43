"""Features under other names, and a label beside the inputs, in every framework."""

import importlib

import numpy as np
import pytest

from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.files.file_set import FileSet
from tests.client.records import write_set

FRAMEWORKS = ["numpy", "torch", "tf", "jax"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return FileSet(write_set(tmp_path_factory.mktemp("set"), 10, 4), window=None)


def make(files, framework, *arguments, **options):
    if framework != "numpy":
        importlib.import_module({"tf": "tensorflow"}.get(framework, framework))
    return getattr(files, framework)(*arguments, **options)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_renamed_features_come_under_their_new_names(files, framework):
    options = {"shuffle": False, "features": ["image", "label"], "cast": {"label": "int32"}}
    plain = next(iter(make(files, framework, 4, **options)))
    loader = make(files, framework, 4, rename={"image": "x", "label": "image"}, **options)
    batch = next(iter(loader))
    assert list(batch) == list(loader.schema.names) == ["x", "image"]
    assert np.array_equal(np.asarray(batch["x"]), np.asarray(plain["image"]))
    assert np.array_equal(np.asarray(batch["image"]), [0, 1, 2, 3])
    assert loader.schema["image"].dtype == "int32"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_label_comes_beside_the_inputs(files, framework):
    options = {"shuffle": False, "rename": {"label": "y"}, "label": "y", "features": ["vector"]}
    for inputs, label in make(files, framework, 4, **options):
        assert set(inputs) == {"vector"}
        assert np.array_equal(np.asarray(inputs["vector"])[:, 0], np.asarray(label))
    *_, (inputs, label, valid) = make(files, framework, 4, pad_last=True, **options)
    assert set(inputs) == {"vector"}
    assert np.asarray(label).tolist() == [8, 9, 0, 0]
    assert np.asarray(valid).tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rename": {"lable": "y"}}, SchemaError, "rename names feature 'lable'"),
        (
            {"rename": {"label": "key"}},
            CallerError,
            "'key' and 'label' would both be delivered as 'key'",
        ),
        ({"label": 1}, CallerError, "label=1, expected the name of a feature"),
        ({"rename": {"label": ""}}, CallerError, "rename={'label': ''}: expected a name"),
        ({"rename": {"label": "_valid"}}, SchemaError, r"the loader adds \['_valid'\]"),
        ({"rename": {"label": "y"}, "label": "label"}, SchemaError, "no feature 'label'"),
    ],
)
def test_names_that_cannot_be_are_refused(files, options, error, message):
    with pytest.raises(error, match=message):
        files.numpy(1, **options)
