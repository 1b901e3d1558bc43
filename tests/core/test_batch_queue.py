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
