"""Batches that a function of the caller makes, in threads and ahead of the loop."""

import gc
import importlib
import threading
import time
import weakref

import numpy as np
import pytest

from cachecd_client.errors import SchemaError
from cachecd_client.files.file_set import FileSet
from tests.client.records import write_set

N = 40
OPTIONS = {"features": ["label", "vector", "key"], "shuffle": False}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return FileSet(write_set(tmp_path_factory.mktemp("set"), N, 16), window=None)


def noisy(batch, random):
    """A column kept, one dropped, a new one, and one of another dtype and shape."""
    return {
        "label": batch["label"],
        "key": batch["key"],
        "noise": random.random((len(batch["label"]), 2), np.float32),
        "vector": np.stack([batch["vector"]] * 3, 1).astype(">f8"),
    }


def dense(value):
    return np.asarray(value) if not hasattr(value, "numpy") else value.numpy()


def noises(batches):
    return [dense(batch["noise"]) for batch in batches]


def threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("cachecd-prepare")]


def make(files, framework):
    if framework != "numpy":
        importlib.import_module({"tf": "tensorflow"}.get(framework, framework))
    return getattr(files, framework)


@pytest.mark.parametrize("framework", ["numpy", "torch", "tf", "jax"])
def test_every_framework_gets_what_the_function_returns(files, framework):
    plain = list(files.numpy(8, prepare=noisy, **OPTIONS))
    loader = make(files, framework)(8, prepare=noisy, label="label", **OPTIONS)
    batches = list(loader)
    assert len(batches) == len(loader) == len(plain) == 5
    for (inputs, label), expected in zip(batches, plain, strict=True):
        assert list(inputs) == ["key", "noise", "vector"]
        assert np.array_equal(dense(label), expected["label"])
        assert np.array_equal(dense(inputs["noise"]), expected["noise"])
        assert dense(inputs["vector"]).shape == (8, 3, 2)
        assert np.array_equal(dense(inputs["vector"]), expected["vector"])
        assert list(dense(inputs["key"])) == expected["key"].tolist()
    assert not threads()


def test_random_numbers_follow_from_seed_pass_and_place(files):
    def slow(batch, random):
        if batch["label"][0] % 16 == 0:
            time.sleep(0.002)  # so that the threads end in another order
        return noisy(batch, random)

    loader = files.numpy(8, prepare=slow, seed=5, **OPTIONS)
    first, second = noises(loader), noises(loader)
    for other in (files.numpy(8, prepare=noisy, seed=5, threads=1, **OPTIONS), loader):
        other.set_epoch(0)
        assert np.array_equal(first, noises(other))
    assert len({noise.tobytes() for noise in [*first, *second]}) == 10
    ranks = [files.numpy(4, prepare=noisy, seed=5, rank=r, world=2, **OPTIONS) for r in range(2)]
    assert len({n.tobytes() for rank in ranks for n in noises(rank)}) == 10


def test_an_exception_is_raised_at_its_turn(files):
    def fail(batch, random):
        if batch["label"][0] == 12:
            raise ValueError("no such batch")
        return batch

    loader = files.numpy(4, prepare=fail, **OPTIONS)
    seen = []
    with pytest.raises(ValueError, match="no such batch") as raised:
        seen.extend(int(batch["label"][0]) for batch in loader)
    assert seen == [0, 4, 8]
    assert raised.traceback[0].path.name == "test_prepare.py"
    assert loader.state_dict()["position"] == loader.position == 3
    assert not threads()
    del raised
    again = files.numpy(4, prepare=lambda batch, random: batch, **OPTIONS)
    again.load_state_dict(loader.state_dict())
    assert [int(batch["label"][0]) for batch in again] == list(range(12, N, 4))


@pytest.mark.parametrize("end", ["break", "close", "drop"])
def test_a_pass_that_ends_early_leaves_nothing_behind(files, end):
    kept = []

    def note(batch, random):
        kept.append(weakref.ref(batch["vector"]))
        return batch

    loader = files.numpy(4, prepare=note, **OPTIONS)
    batches = iter(loader)
    next(batches)
    if end == "close":
        loader.close()
    if end != "drop":
        batches.close()
    del batches
    gc.collect()
    assert not threads()
    assert not any(column() is not None for column in kept)
    assert loader.position == 1


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        ([], "prepare returned a list, expected a dict"),
        ({"x": [0] * 4}, r"prepare returned list for 'x', expected an array of numbers \[4, ...\]"),
        ({"x": np.zeros(3)}, "prepare returned 3 rows of 'x', expected 4"),
        ({"x": np.zeros(4)}, "prepare returned no column 'label', which is the label"),
    ],
)
def test_what_is_no_column_is_refused(files, returns, message):
    loader = files.torch(4, prepare=lambda batch, random: returns, label="label", **OPTIONS)
    with pytest.raises(SchemaError, match=message):
        next(iter(loader))


def test_channels_last_names_columns_of_the_function(files):
    images = {"prepare": lambda batch, random: {"x": np.zeros((4, 5, 6, 3), np.uint8)}, **OPTIONS}
    assert next(iter(files.torch(4, channels_last=["x"], **images)))["x"].shape == (4, 3, 5, 6)
    with pytest.raises(SchemaError, match="no feature 'y'"):
        next(iter(files.torch(4, channels_last=["y"], **images)))


def test_a_label_that_is_stored_reaches_the_function_by_itself(files):
    made = {"y": lambda batch, random: {"y": batch["label"]}, "vector": lambda batch, random: batch}
    for label, prepare in made.items():
        options = {"features": ["label"], "label": label, "prepare": prepare, "shuffle": False}
        _, values = next(iter(files.numpy(4, **options)))
        assert values.reshape(4, -1)[:, 0].tolist() == [0, 1, 2, 3]
