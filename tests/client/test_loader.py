import copy
import gc
import itertools
import os
import pickle

import pytest

from cachecd_client.errors import CallerError
from cachecd_client.files.file_set import FileSet
from tests.client.records import examples, labels, write, write_set
from tests.client.test_epoch import corrupt
from tests.core.processes import in_child, until

N, EACH = 103, 20


# Resuming


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 20}, r"batch_size 10 \(here 20\)"),
        ({"world": 2, "rank": 0}, r"world 1 \(here 2\)"),
    ],
)
def test_the_state_of_another_division_or_set_is_refused(files, options, message):
    state = files.numpy(batch_size=10).state_dict()
    loader = files.numpy(**{"batch_size": 10, **options})
    with pytest.raises(CallerError, match=message):
        loader.load_state_dict(state)
    with pytest.raises(CallerError, match=r"fingerprint .*resume with the same file set"):
        FileSet(files.files[:3]).numpy(batch_size=10).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "loader state version 2, expected 1"),
        ({"position": 99}, "position=99, expected at most 10"),
        ({"seed": -1}, "seed=-1, expected at least 0"),
        ({"pass": None}, "pass=None, expected a whole number"),
    ],
)
def test_a_state_that_cannot_be_is_refused_and_changes_nothing(files, change, message):
    loader = files.numpy(batch_size=10, seed=5, reshuffle=False)
    whole = labels(loader)
    with pytest.raises(CallerError, match=message):
        loader.load_state_dict({**loader.state_dict(), **change})
    assert labels(loader) == whole


# Life


def test_a_closed_loader_says_so_and_its_batches_stay_valid(files):
    loader = files.numpy(batch_size=10, shuffle=False)
    batches = iter(loader)
    batch = next(batches)
    loader.close()
    loader.close()
    with pytest.raises(CallerError, match="this pass has ended"):
        next(batches)
    with pytest.raises(CallerError, match="this loader is closed"):
        next(iter(loader))
    del loader, batches
    gc.collect()
    assert batch["label"].tolist() == list(range(10))


def test_a_loader_is_not_pickled_and_says_what_is(files):
    loader = files.numpy(batch_size=10)
    for tried in (pickle.dumps, copy.copy):
        with pytest.raises(CallerError, match="pickle the FileSet or the Epoch"):
            tried(loader)


def test_leaving_the_loop_ends_the_reading_threads(files):
    before = native_threads()
    loader = files.numpy(batch_size=1, threads=2, prefetch_bytes=1)
    for _ in loader:
        assert native_threads() > before
        break
    gc.collect()
    until(lambda: native_threads() == before)
    assert loader.position == 1


def test_a_pass_does_not_cross_a_fork(files):
    loader = files.numpy(batch_size=10, shuffle=False)
    batches = iter(loader)
    next(batches)

    def read() -> list:
        try:
            next(batches)
        except CallerError as error:
            return [str(error), labels(loader)]
        return ["no error"]

    message, anew = in_child(read)
    assert "began before the fork" in message
    assert anew == list(range(100))
    assert labels(batches) == list(range(10, 100))


# Corruption


@pytest.fixture
def corrupt_file(tmp_path):
    """A file of 20 records of which record 7 has a flipped byte; and where its frame starts."""
    path = write(tmp_path / "a.tfrecord", examples(range(20)))
    return path, corrupt(path, 7)


def test_a_corrupt_record_is_replaced_by_another_and_said_once(corrupt_file, caplog):
    path, offset = corrupt_file
    loader = FileSet(path).numpy(batch_size=5, shuffle=False)
    found = labels(loader)
    assert len(found) == 20
    assert set(found) == set(range(20)) - {7}
    ((where, at, why),) = loader.corrupt
    assert (where, at) == (str(path), offset)
    assert "CRC" in why
    assert not [line for line in caplog.records if line.levelname == "WARNING"]
    list(FileSet(path).numpy(batch_size=6, shuffle=False, drop_last=False))
    (line,) = (line for line in caplog.records if line.levelname == "WARNING")
    assert "1 corrupt records were replaced" in line.message
    assert f"at byte {offset} of {path}: " in line.message
    assert "count the other records twice; to get an error" in line.message


def native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


# Pass after pass


def test_each_pass_has_an_order_of_its_own_that_follows_from_the_seed(files):
    with files.numpy(batch_size=10, seed=3) as loader:
        passes = [labels(loader) for _ in range(4)]
    assert all(len(set(found)) == 100 for found in passes)
    assert len({tuple(found) for found in passes}) == 4
    again = files.numpy(batch_size=10, seed=3, threads=3)
    assert [labels(again) for _ in range(4)] == passes


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


def test_look_on_one_rank_leaves_later_passes_divided(tmp_path):
    files = FileSet(write_set(tmp_path, 400, 100))
    ranks = [files.numpy(10, rank=rank, world=2, features=["label"]) for rank in range(2)]
    list(itertools.islice(ranks[0], 2))
    for _ in range(2):
        assert sorted(labels(ranks[0]) + labels(ranks[1])) == list(range(400))


def test_shuffled_ranks_take_equal_steps_and_never_the_same_record(files):
    loaders = [files.numpy(4, rank=rank, world=3) for rank in range(3)]
    assert len({len(loader) for loader in loaders}) == 1
    orders = []
    for number in range(2):
        of_ranks = []
        for loader in loaders:
            loader.set_epoch(number)
            of_ranks.append(labels(loader))
        together = [label for found in of_ranks for label in found]
        assert [len(found) for found in of_ranks] == 3 * [4 * len(loaders[0])]
        assert len(set(together)) == len(together)
        orders.append(of_ranks)
    assert orders[0] != orders[1]


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
        "pass 1 of rank 1 of 2 repeats the order of the previous pass"
    )
    loader.set_epoch(0)
    assert labels(loader) == first
