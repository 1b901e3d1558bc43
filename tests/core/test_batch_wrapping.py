"""BatchReader: what `wrap` raises, and where; nothing of it is lost, and no batch in silence."""

import signal

import pytest

from tests.core.processes import reader_threads, until
from tests.core.shards import example, reader_of, write

LABEL = ("label", "int64", "int64", (), False)
BATCHES, ROWS = 40, 5


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    path = tmp_path_factory.mktemp("wrapping") / "a"
    return str(write(path, [example(i) for i in range(BATCHES * ROWS)]))


class Failing:
    """A wrap that raises when it is called for the `number`th time, from 0 on."""

    def __init__(self, number, raising):
        self.number, self.raising, self.calls = number, raising, 0

    def __call__(self, values):
        self.calls += 1
        if self.calls == self.number + 1:
            self.raising()
        return values


def read(shard, wrap, **options):
    reader = reader_of(
        shard,
        [LABEL],
        batch_size=ROWS,
        shuffle=False,
        wrap={"label": wrap},
        prefetch_bytes=1 << 20,
        **options,
    )
    until(lambda: not reader_threads())  # all is made, so that several are wrapped at a time
    return reader


def first_label(reader):
    return int(reader.next()["label"][0])


def refuse():
    raise ValueError("refused")


def interrupt():
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("number", [0, 1, 14, 15, 16, 39])
def test_what_a_wrap_raises_is_raised_when_its_batchs_turn_comes(shard, number, one_by_one):
    reader = read(shard, Failing(number, refuse), one_by_one=one_by_one)
    assert [first_label(reader) for _ in range(number)] == [ROWS * i for i in range(number)]
    with pytest.raises(ValueError, match="refused"):
        reader.next()


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_batch_that_was_not_wrapped_is_not_skipped_in_silence(shard, one_by_one):
    reader = read(shard, Failing(3, refuse), one_by_one=one_by_one)
    for _ in range(3):
        reader.next()
    with pytest.raises(ValueError, match="refused"):
        reader.next()
    for _ in range(3 * BATCHES):  # each took memory from prefetch_bytes that never came back
        with pytest.raises(RuntimeError, match=r"a batch is lost, because ValueError.*restart"):
            reader.next()
    reader.restart(3)
    assert first_label(reader) == 3 * ROWS


def test_an_interrupt_while_batches_are_wrapped_ahead_leaves_at_once_and_loses_none_before(shard):
    reader = read(shard, Failing(13, interrupt))
    with pytest.raises(KeyboardInterrupt):
        reader.next()
    assert [first_label(reader) for _ in range(13)] == [ROWS * i for i in range(13)]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a batch is lost, because KeyboardInterrupt"):
            reader.next()
    reader.restart(13)
    assert first_label(reader) == 13 * ROWS
