"""The files of a lease by numbers: a sequence as any other, that makes no path before it is asked for."""

from __future__ import annotations

import pickle

import pytest

from cachecd_client.lease.leased_set import ShardFiles

FOLDER = "/c/datasets/train/g/shards"
INTERVALS = [
    [0, 1, 2],
    [1, 0, 0],
    [2, 3_333_333_332, 3_333_333_332],
]  # of two streams, and supplements
NUMBERS = [1, 3, 6, 9_999_999_998]


def paths(versions):
    names = [f"{n:010d}{f'.{versions[n]}' if n in versions else ''}" for n in NUMBERS]
    return [f"{FOLDER}/{name}.tfrecord" for name in names]


@pytest.mark.parametrize("versions", [{}, {3: 1, 9_999_999_998: 12}])
def test_they_are_the_paths_of_the_intervals_in_the_order_of_numbers(versions):
    files = ShardFiles(FOLDER, 2, INTERVALS, [[n, version] for n, version in versions.items()])
    expected = paths(versions)
    assert list(files) == expected
    assert len(files) == 4
    assert files.numbers.tolist() == NUMBERS
    assert list(pickle.loads(pickle.dumps(files))) == expected
    assert expected[0] in files
    assert f"/c/datasets/eval/g/shards/{NUMBERS[0]:010d}.tfrecord" not in files
