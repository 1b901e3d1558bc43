"""The files of a lease by numbers: a sequence as any other, that makes no path before it is asked for."""

from __future__ import annotations

import pickle

import pytest

from cachecd_client.shardfiles import ShardFiles

RANGES = [[1, 3], [7, 7], [9_999_999_998, 9_999_999_999]]
PATHS = [f"/c/shards/train/{n:010d}.tfrecord" for n in (1, 2, 3, 7, 9_999_999_998, 9_999_999_999)]


def test_they_are_the_paths_of_the_ranges_in_order():
    files = ShardFiles("/c/shards/train", RANGES)
    assert list(files) == PATHS
    assert len(files) == 6
    assert [files[i] for i in range(-6, 6)] == PATHS + PATHS
    assert files[1:5:2] == PATHS[1:5:2]
    assert files.numbers.tolist() == [int(path[-19:-9]) for path in PATHS]
    assert list(pickle.loads(pickle.dumps(files))) == PATHS
    with pytest.raises(IndexError):
        files[6]


def test_no_ranges_are_no_files():
    assert list(ShardFiles("/c", [])) == []
    assert not ShardFiles("/c", [])
