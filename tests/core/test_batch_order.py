"""BatchReader: which record comes when, on which rank, from where one resumes."""

import numpy as np
import pytest

from cachecd_client._core import BatchReader, Permutation
from tests.core.shards import FEATURES, batches, example, labels, write, write_files

N = 97
SIZES = [40, 0, 1, 56]  # of the files


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("order"), SIZES, [0, 40, 40, 41])


def arrays(column):
    return column if isinstance(column, tuple) else (column,)


def test_a_shuffled_order_is_the_permutations(files):
    reader = BatchReader(files, FEATURES, batch_size=1, seed=5)
    assert labels(reader) == Permutation(N, 5).take(0, N).tolist()


@pytest.mark.parametrize(("threads", "prefetch_bytes"), [(1, 1 << 30), (2, 0), (7, 1000)])
def test_the_order_depends_neither_on_threads_nor_on_prefetch(files, threads, prefetch_bytes):
    options = {"batch_size": 3, "seed": 9, "last": "pad", "ids": True}
    plain = batches(BatchReader(files, FEATURES, threads=1, **options))
    varied = batches(
        BatchReader(files, FEATURES, threads=threads, prefetch_bytes=prefetch_bytes, **options)
    )
    assert len(plain) == len(varied) == 33
    for one, other in zip(plain, varied, strict=True):
        assert one.keys() == other.keys()
        for name, column in one.items():
            for a, b in zip(arrays(column), arrays(other[name]), strict=True):
                assert np.array_equal(a, b)


def test_ids_tell_file_and_record(files):
    options = {"batch_size": 10, "last": "pad", "ids": True, "seed": 3}
    starts = np.cumsum([0, *SIZES])
    for batch in batches(BatchReader(files, FEATURES, **options)):
        assert batch["_shard"].dtype == batch["_record"].dtype == np.int64
        valid = batch["_valid"]
        numbers = starts[batch["_shard"][valid]] + batch["_record"][valid]
        assert numbers.tolist() == batch["label"][valid].tolist()
        # A row without a record has no id that a record could have.
        assert (batch["_shard"][~valid] == -1).all()
        assert (batch["_record"][~valid] == -1).all()


# How records are found


@pytest.mark.parametrize("offsets", [[0, 0], [5, 3], [0, 10**6, 10**6]])
def test_offsets_that_cannot_be_are_refused(tmp_path, offsets):
    path = write(tmp_path / "a", [example(0), example(1)])
    with pytest.raises(ValueError, match="does not ascend"):
        BatchReader([(str(path), np.array(offsets, np.uint64))], FEATURES, batch_size=1)


@pytest.mark.parametrize(
    "offsets", [np.zeros((1, 1), np.uint64), np.array([0.0]), np.array([-1]), "text", [0]]
)
def test_offsets_of_another_type_are_a_type_error(tmp_path, offsets):
    path = write(tmp_path / "a", [example(0)])
    with pytest.raises(TypeError, match="uint64 array"):
        BatchReader([(str(path), offsets)], FEATURES, batch_size=1)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        BatchReader([(str(tmp_path / "missing"), None)], FEATURES, batch_size=1)
    assert caught.value.filename == str(tmp_path / "missing")


# Requests that cannot be


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 1, "rank": 2, "world": 2}, "rank 2 of 2"),
        ({"batch_size": 1, "world": 0}, "rank 0 of 0"),
        ({"batch_size": 1, "last": "padded"}, "'padded', expected 'drop', 'short' or 'pad'"),
        ({"batch_size": 1, "start": N + 1}, "start is 98, there are 97 batches"),
        ({"batch_size": 1, "on_corrupt": "ignore"}, "'ignore', expected 'replace' or 'raise'"),
    ],
)
def test_impossible_options_are_value_errors(files, options, message):
    with pytest.raises(ValueError, match=message):
        BatchReader(files, FEATURES, **options)


@pytest.mark.parametrize("files", [["a"], [("a",)], [("a", None, None)], [(1, None)]])
def test_files_of_another_form_are_type_errors(files):
    with pytest.raises(TypeError):
        BatchReader(files, FEATURES, batch_size=1)


@pytest.mark.parametrize("feature", ["x", ("x",), (1, "int64", "int64", (), False)])
def test_features_of_another_form_are_type_errors(feature):
    with pytest.raises(TypeError):
        BatchReader([], [feature], batch_size=1)
