"""BatchReader.queue_filled: how much was made ahead, as each batch was delivered."""

import os

import pytest

from tests.core.processes import until
from tests.core.shards import example, reader_of, write

N = 60


@pytest.fixture
def path(tmp_path):
    return str(write(tmp_path / "a", [example(number) for number in range(N)]))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_a_queue_that_has_all_the_rest_is_full_whatever_its_size(path):
    before = threads()
    reader = reader_of(path, batch_size=4, prefetch_bytes=1 << 30)
    until(lambda: threads() == before)  # they end when all is made
    for taken in range(1, 16):
        reader.next()
        assert reader.queue_filled == taken


def test_a_queue_of_one_batch_is_empty_whenever_that_is_taken_but_the_last(path):
    reader = reader_of(path, batch_size=4, prefetch_bytes=0)
    for _ in range(14):
        reader.next()
        assert reader.queue_filled == 0
    reader.next()
    assert reader.queue_filled == 1


def test_what_is_being_made_does_not_count(path):
    """Room for eight batches in bytes, of which those that are made alone are in the queue."""
    reader = reader_of(path, batch_size=1, prefetch_bytes=1 << 30, threads=1)
    filled = []
    for _ in range(N):
        before = reader.queue_filled
        reader.next()
        filled.append(reader.queue_filled - before)
    # Of a GiB these batches are next to nothing: all is either that, or the whole rest.
    assert all(share < 1e-3 or share == 1 for share in filled)
    assert filled[-1] == 1


def test_a_pass_begun_anew_counts_anew(path):
    reader = reader_of(path, batch_size=4)
    while reader.next() is not None:
        pass
    assert reader.queue_filled > 0
    reader.restart()
    assert reader.queue_filled == 0
