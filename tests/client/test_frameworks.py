"""The same files, batches and memory in every framework."""

import gc

import numpy as np
import pytest

from tests.client.records import examples
from tests.frameworks import jax, tf, torch

N, EACH = 53, 10
FRAMEWORKS = ["numpy", "torch", "tf", "jax"]


def plain(column):
    """A column of any framework as nested lists; bfloat16 by its bits."""
    if isinstance(column, tf.RaggedTensor):
        return column.to_list()
    if isinstance(column, torch.Tensor):
        column = column.view(torch.uint16) if column.dtype == torch.bfloat16 else column
        return column.tolist()
    if isinstance(column, tf.Tensor):
        column = tf.bitcast(column, tf.uint16) if column.dtype == tf.bfloat16 else column
        return column.numpy().tolist()
    if isinstance(column, jax.Array):
        column = np.asarray(column)
        return (column.view(np.uint16) if column.dtype == jax.numpy.bfloat16 else column).tolist()
    return [row.tolist() if isinstance(row, np.ndarray) else row for row in column]


def rows(batches) -> list[dict]:
    found = []
    for batch in batches:
        columns = {name: plain(column) for name, column in batch.items()}
        found += [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
    return found


# Files that cross


def test_the_cores_file_is_the_same_record_by_record_in_every_reader(files):
    stock = [r.numpy() for r in tf.data.TFRecordDataset(files.files)]
    assert stock == examples(range(N))
    options = {"batch_size": 8, "shuffle": False, "drop_last": True}
    found = rows(files.tf_dataset(**options))
    assert [row["label"] for row in found] == list(range(48))
    for framework in FRAMEWORKS:
        assert rows(getattr(files, framework)(**options)) == found, framework


def test_the_order_of_records_is_the_same_in_every_framework(files):
    options = {"batch_size": 5, "seed": 7, "ids": True, "rank": 1, "world": 2}
    for last in ({"pad_last": True}, {"drop_last": False}):
        expected = two_passes(files.numpy(**options, **last))
        assert expected[0] != expected[1]
        for found in expected:
            assert len({row["label"] for row in found if row.get("_valid", True)}) == 26
            assert [row["label"] for row in found] != sorted(row["label"] for row in found)
        for framework in FRAMEWORKS[1:]:
            loader = getattr(files, framework)(**options, **last)
            assert two_passes(loader) == expected, framework


def two_passes(loader):
    first = rows(loader)
    loader.set_epoch(1)
    return [first, rows(loader)]


# Memory that crosses


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_batches_that_are_kept_keep_their_values(files, framework):
    options = {"batch_size": 1, "prefetch_bytes": 1, "drop_last": True}
    expected = rows(files.numpy(**options))
    kept = list(getattr(files, framework)(**options))
    gc.collect()
    assert rows(kept) == expected
