"""Pass after pass of one loader: numbers, orders, and the files that stay open."""

import itertools
import os

import pytest

from cachecd_client.errors import CallerError
from cachecd_client.files.file_set import FileSet
from tests.client.records import labels, write_set

N, EACH = 103, 20


def test_each_pass_has_an_order_of_its_own_that_follows_from_the_seed(files):
    with files.numpy(batch_size=10, seed=3) as loader:
        passes = [labels(loader) for _ in range(4)]
    assert all(len(set(found)) == 100 for found in passes)
    assert len({tuple(found) for found in passes}) == 4
    again = files.numpy(batch_size=10, seed=3, threads=3)
    assert [labels(again) for _ in range(4)] == passes


def test_without_reshuffle_each_pass_has_the_order_of_the_first(files):
    first = labels(files.numpy(batch_size=10, seed=3))
    with files.numpy(batch_size=10, seed=3, reshuffle=False) as loader:
        assert [labels(loader) for _ in range(3)] == [first] * 3


def test_set_epoch_says_which_pass_is_next_and_those_after_it_follow_on(files):
    loader = files.numpy(batch_size=10)
    passes = [labels(loader) for _ in range(4)]
    for epoch in (2, 0, 3):
        loader.set_epoch(epoch)
        assert loader.state_dict()["pass"] == epoch
        assert labels(loader) == passes[epoch]
    loader.set_epoch(1)
    assert [labels(loader), labels(loader)] == passes[1:3]
    with pytest.raises(CallerError, match="epoch=-1, expected at least 0"):
        loader.set_epoch(-1)


def test_set_epoch_leaves_the_pass_that_runs_and_a_state_of_that_pass(files):
    loader = files.numpy(batch_size=10)
    passes = [labels(loader) for _ in range(3)]
    batches = iter(loader)
    next(batches)
    loader.set_epoch(1)
    assert len(labels(batches)) == 90
    assert labels(itertools.islice(loader, 4)) == passes[1][:40]
    state = loader.state_dict()
    for epoch, expected in ((1, passes[1][40:]), (2, passes[2])):
        resumed = files.numpy(batch_size=10)
        resumed.load_state_dict(state)
        resumed.set_epoch(epoch)
        assert labels(resumed) == expected


def test_look_on_one_rank_leaves_later_passes_divided(tmp_path):
    files = FileSet(write_set(tmp_path, 400, 100))
    ranks = [files.numpy(10, rank=rank, world=2, features=["label"]) for rank in range(2)]
    list(itertools.islice(ranks[0], 2))
    for _ in range(2):
        assert sorted(labels(ranks[0]) + labels(ranks[1])) == list(range(400))


def test_several_ranks_keep_one_order_until_set_epoch(files, caplog):
    loader = files.numpy(10, rank=1, world=2, seed=3)
    first = labels(loader)
    loader.set_epoch(1)
    second = labels(loader)
    assert first != second
    assert not caplog.records
    assert [labels(loader), labels(loader)] == [second, second]
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "pass 1 of rank 1 of 2 repeats the order of the pass before"
    )
    loader.set_epoch(0)
    assert labels(loader) == first


def test_another_pass_opens_no_file_again(files, tmp_path):
    paths = write_set(tmp_path, 40, 20)
    loader = FileSet(paths).numpy(batch_size=10)
    list(loader)
    for path in paths:
        os.unlink(path)
    assert sorted(labels(loader)) == list(range(40))
