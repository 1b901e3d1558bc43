"""BatchReader: pass after pass with the same files, and the batches of one pass as an iterator."""

import pytest

from cachecd_client.errors import CorruptRecordError
from tests.core.processes import reader_threads, until
from tests.core.shards import example, flip, labels, reader_of, write

N = 60


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a", [example(number) for number in range(N)])


def reader(path, **options):
    return reader_of(path, **{"batch_size": 4, "seed": 3, **options})


@pytest.mark.parametrize("taken", [0, 1, 7, 15])
def test_a_pass_begins_anew_from_wherever_it_was(path, taken):
    several = reader(path)
    whole = labels(reader(path))
    for _ in range(taken):
        several.next()
    several.restart(2)
    assert labels(several) == whole[8:]


def test_a_pass_may_follow_one_that_failed(path):
    flip(path, 40)
    several = reader(path, on_corrupt="raise", shuffle=False)
    for _ in range(2):
        with pytest.raises(CorruptRecordError):
            several.next()
        several.restart()
    several.restart(1)
    assert labels(several) == list(range(4, N))


def test_a_start_beyond_the_last_batch_is_refused_and_the_reader_stays_of_use(path):
    several = reader(path)
    with pytest.raises(ValueError, match="start is 16, there are 15 batches"):
        several.restart(16)
    several.restart(15)
    assert labels(several) == []
    several.restart()
    assert len(labels(several)) == N


def test_a_queue_that_has_all_the_rest_is_full_whatever_its_size(path):
    several = reader(path, prefetch_bytes=1 << 30)
    until(lambda: not reader_threads())  # they end when all is made
    for taken in range(1, 16):
        several.next()
        assert several.queue_filled == taken
