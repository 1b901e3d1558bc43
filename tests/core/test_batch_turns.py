"""BatchReader: readers that take turns over the batches of one rank."""

import pytest

from tests.core.shards import example, labels, reader_of, write

N = 62


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a", [example(number) for number in range(N)])


def reader(path, **options):
    return reader_of(path, **{"batch_size": 4, "seed": 3, **options})


def taken(path, **options):
    numbers = labels(reader(path, **options))
    return [numbers[i : i + 4] for i in range(0, len(numbers), 4)]


@pytest.mark.parametrize("every", [1, 2, 3, 15, 16, 40])
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("start", [0, 5])
def test_readers_that_take_turns_deliver_together_what_one_does(path, every, threads, start):
    whole = taken(path)
    turns = [
        taken(path, start=min(start + first, 15), every=every, threads=threads)
        for first in range(every)
    ]
    assert [turns[i % every][i // every] for i in range(15 - start)] == whole[start:]
    assert sum(map(len, turns)) == 15 - start


def test_the_position_is_that_of_the_next_batch_in_turn(path):
    one = reader(path, start=1, every=4)
    assert one.position == 1
    one.next()
    assert one.position == 5
    while one.next() is not None:
        pass
    assert one.position == one.num_batches == 15
    one.restart(2)
    assert one.position == 2
    assert labels(one) == [n for batch in taken(path)[2::4] for n in batch]


def test_the_largest_step_delivers_one_batch(path):
    assert taken(path, start=3, every=2**64 - 1) == taken(path)[3:4]


def test_no_step_is_an_error(path):
    with pytest.raises(ValueError, match="every is 0"):
        reader(path, every=0)
