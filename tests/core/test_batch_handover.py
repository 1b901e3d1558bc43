"""How batches leave the core: wrapped, as DLPack capsules, several at a time."""

import gc
import threading
import weakref

import numpy as np
import pytest

from cachecd_client import _core
from tests.core.processes import in_child, reader_threads, until
from tests.core.shards import FEATURES, batches, example, reader_of, spoil, write
from tests.core.test_batch_process import anonymous_bytes

DENSE = [("x", "bytes", "uint8", (3, 2), True), ("label", "int64", "int64", (), False)]


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    records = [_core.encode_example({"x": bytes([n] * 6), "label": n}) for n in range(40)]
    return str(write(tmp_path_factory.mktemp("handover") / "a", records))


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    return str(write(tmp_path_factory.mktemp("lists") / "a", [example(n) for n in range(20)]))


class Producer:
    """What an array library wants around a capsule."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)  # CPU


def reader(path, features=DENSE, **options):
    return reader_of(path, features, **{"batch_size": 4, "shuffle": False, "threads": 1, **options})


# Wrapping


def test_what_wraps_a_column_gets_its_arrays_and_makes_its_value(shard):
    seen = []

    def wrap(*arrays):
        seen.append(len(arrays))
        return [array.tolist() for array in arrays]

    batch = reader(shard, FEATURES, wrap={"label": wrap, "name": wrap, "list": None}).next()
    assert batch["label"] == [[0, 1, 2, 3]]
    assert batch["name"][1] == [0, 8, 16, 24, 32]
    assert [array.tolist() for array in batch["list"]] == [[1, 2, 2], [0, 0, 1, 3, 3]]
    assert set(seen) == {1, 2}


def test_ready_batches_are_wrapped_together_unless_each_is_to_wait_for_its_turn(dense):
    for one_by_one, expected in ((False, 10), (True, 1)):
        wrapped = []
        whole = reader(dense, wrap={"label": wrapped.append}, one_by_one=one_by_one)
        until(lambda: not reader_threads())  # they end when everything is made
        whole.next()
        assert len(wrapped) == expected


def test_only_what_was_delivered_is_counted_as_read(dense):
    whole = reader(dense)
    until(lambda: not reader_threads())
    size = len(_core.read_record(dense, 0))
    for number in range(1, 4):
        whole.next()
        assert whole.bytes_read == number * 4 * size


def test_closing_lets_go_of_what_is_wrapped_and_nothing_more_is_delivered(dense):
    made = []

    def wrap(labels):
        made.append(weakref.ref(labels))
        return labels

    whole = reader(dense, wrap={"label": wrap})
    until(lambda: not reader_threads())
    kept = whole.next()
    whole.close()
    assert [ref() is not None for ref in made] == [True] + [False] * 9
    assert kept["label"].tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="the reader is closed"):
        whole.next()


def test_what_is_wrapped_but_not_delivered_counts_as_made_ahead(tmp_path):
    record = _core.encode_example({"x": bytes(1 << 20)})
    path = str(write(tmp_path / "a", [record] * 40))
    wrapped = []
    large = reader_of(
        path,
        [("x", "bytes", "uint8", (1 << 20,), True)],
        batch_size=1,
        threads=1,
        prefetch_bytes=8 << 20,
        wrap={"x": wrapped.append},
    )
    asleep(1)
    large.next()
    assert len(wrapped) == 8
    asleep(1)
    large.next()  # of those wrapped: the reading thread has not been woken for one batch
    assert len(wrapped) == 8


# The reading threads' sleep


def asleep(threads):
    until(lambda: all(reader_threads() == ["S"] * threads for _ in range(50)))


def test_reading_goes_on_when_half_of_what_is_ahead_has_been_taken(tmp_path):
    path = write(tmp_path / "a", [example(n) for n in range(200)])
    spoil(path, range(0, 200, 2))  # so that corrupt records tell how many are made
    ahead = reader(str(path), FEATURES[:1], batch_size=2, threads=2, prefetch_bytes=20 * 64)
    until(lambda: ahead.num_corrupt >= 18)
    asleep(2)
    full = ahead.num_corrupt
    for _ in range(7):
        ahead.next()
    assert ahead.num_corrupt == full
    for _ in range(5):
        ahead.next()
    until(lambda: ahead.num_corrupt >= full + 10)


# DLPack


def test_a_capsule_is_the_array_that_numpy_would_get(dense):
    arrays = reader(dense).next()
    capsules = reader(dense, dlpack={"x", "label"}).next()
    for name, array in arrays.items():
        found = np.from_dlpack(Producer(capsules[name]))
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tolist() == array.tolist()
        assert found.ctypes.data % 64 == 0


def test_every_array_of_a_column_comes_as_a_capsule(shard):
    values, row_splits = reader(shard, FEATURES, dlpack={"list"}).next()["list"]
    assert np.from_dlpack(Producer(values)).tolist() == [1, 2, 2]
    assert np.from_dlpack(Producer(row_splits)).tolist() == [0, 0, 1, 3, 3]


def test_no_rows_and_no_elements_make_capsules_too(tmp_path):
    path = str(write(tmp_path / "a", [_core.encode_example({"x": b"", "l": []})]))
    features = [("x", "bytes", "float32", (0, 3), True), ("l", "int64", "int64", None, False)]
    batch = reader(path, features, batch_size=1, dlpack={"x", "l"}).next()
    empty = np.from_dlpack(Producer(batch["x"]))
    assert (empty.shape, empty.dtype) == ((1, 0, 3), np.float32)
    assert np.from_dlpack(Producer(batch["l"][0])).shape == (0,)


def test_memory_is_used_again_only_when_the_last_array_over_a_capsule_is_gone(dense):
    running = reader(dense, DENSE[:1], batch_size=1, prefetch_bytes=0, dlpack={"x"})
    corners = [np.from_dlpack(Producer(batch["x"]))[0, 1:] for batch in batches(running)]
    assert len({corner.ctypes.data for corner in corners}) == 40
    assert [corner.tolist() for corner in corners] == [[[n] * 2] * 2 for n in range(40)]


@pytest.mark.parametrize("take", [Producer, lambda capsule: np.from_dlpack(Producer(capsule))])
def test_memory_is_let_go_with_the_array_or_the_capsule_that_nobody_took(tmp_path, take):
    record = _core.encode_example({"x": bytes(1 << 20)})
    path = str(write(tmp_path / "a", [record] * 150))
    feature = ("x", "bytes", "uint8", (1 << 20,), True)
    running = reader(path, [feature], batch_size=1, prefetch_bytes=4 << 20, dlpack={"x"})
    before = anonymous_bytes()
    while (batch := running.next()) is not None:
        take(batch["x"])
    assert anonymous_bytes() - before < 32 << 20


def test_an_array_over_a_capsule_outlives_the_reader(dense):
    running = reader(dense, dlpack={"x"})
    array = np.from_dlpack(Producer(running.next()["x"]))
    running.close()
    del running
    gc.collect()
    assert array[3].tolist() == [[3, 3]] * 3


def test_threads_let_go_of_arrays_while_others_are_made(dense):
    def work():
        for _ in range(5):
            running = reader(dense, batch_size=1, threads=2, dlpack={"x", "label"})
            for number, batch in enumerate(batches(running)):
                assert int(np.from_dlpack(Producer(batch["label"]))[0]) == number

    failed = []
    threads = [threading.Thread(target=work) for _ in range(3)]
    before = threading.excepthook
    threading.excepthook = failed.append
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.excepthook = before
    assert failed == []


def test_a_forked_child_can_let_go_of_what_it_inherited(dense):
    running = reader(dense, dlpack={"x"})
    inherited = [running.next(), np.from_dlpack(Producer(running.next()["x"]))]
    in_child(lambda: inherited.clear() or gc.collect())
    assert inherited[1][0].tolist() == [[4, 4]] * 3
