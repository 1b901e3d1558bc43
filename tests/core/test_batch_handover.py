"""How batches leave the core: wrapped, as DLPack capsules, several at a time."""

import numpy as np
import pytest

from cachecd_client import _core
from tests.core.shards import FEATURES, batches, example, reader_of, write
from tests.core.test_batch_process import anonymous_bytes

DENSE = [("x", "bytes", "uint8", (3, 2), True), ("label", "int64", "int64", (), False)]


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    records = [_core.encode_example({"x": bytes([n] * 6), "label": n}) for n in range(40)]
    return str(write(tmp_path_factory.mktemp("handover") / "a", records))


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    return str(write(tmp_path_factory.mktemp("lists") / "a", [example(n) for n in range(20)]))


class Producer:
    """What an array library wants around a capsule."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)  # CPU


def reader(path, features=DENSE, **options):
    return reader_of(path, features, **{"batch_size": 4, "shuffle": False, "threads": 1, **options})


# Wrapping


def test_what_wraps_a_column_gets_its_arrays_and_makes_its_value(shard):
    seen = []

    def wrap(*arrays):
        seen.append(len(arrays))
        return [array.tolist() for array in arrays]

    batch = reader(shard, FEATURES, wrap={"label": wrap, "name": wrap, "list": None}).next()
    assert batch["label"] == [[0, 1, 2, 3]]
    assert batch["name"][1] == [0, 8, 16, 24, 32]
    assert [array.tolist() for array in batch["list"]] == [[1, 2, 2], [0, 0, 1, 3, 3]]
    assert set(seen) == {1, 2}


# The reading threads' sleep


# DLPack


def test_a_capsule_is_the_array_that_numpy_would_get(dense):
    arrays = reader(dense).next()
    capsules = reader(dense, dlpack={"x", "label"}).next()
    for name, array in arrays.items():
        found = np.from_dlpack(Producer(capsules[name]))
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tolist() == array.tolist()
        assert found.ctypes.data % 64 == 0


def test_memory_is_used_again_only_when_the_last_array_over_a_capsule_is_gone(dense):
    running = reader(dense, DENSE[:1], batch_size=1, prefetch_bytes=0, dlpack={"x"})
    corners = [np.from_dlpack(Producer(batch["x"]))[0, 1:] for batch in batches(running)]
    assert len({corner.ctypes.data for corner in corners}) == 40
    assert [corner.tolist() for corner in corners] == [[[n] * 2] * 2 for n in range(40)]


@pytest.mark.parametrize("take", [Producer, lambda capsule: np.from_dlpack(Producer(capsule))])
def test_memory_is_let_go_with_the_array_or_the_capsule_that_nobody_took(tmp_path, take):
    record = _core.encode_example({"x": bytes(1 << 20)})
    path = str(write(tmp_path / "a", [record] * 150))
    feature = ("x", "bytes", "uint8", (1 << 20,), True)
    running = reader(path, [feature], batch_size=1, prefetch_bytes=4 << 20, dlpack={"x"})
    before = anonymous_bytes()
    while (batch := running.next()) is not None:
        take(batch["x"])
    assert anonymous_bytes() - before < 32 << 20
