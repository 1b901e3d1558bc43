"""What next() counts while it waits: what the thread does that makes the batch; hidden work counts 0."""

import sys
import threading
import time

import numpy as np
import pytest

from cachecd_client import _core
from cachecd_client._core import BatchReader
from tests.core.pictures import encoded, smooth
from tests.core.processes import reader_threads, until
from tests.core.shards import FEATURES, batches, example, frames, labels, reader_of, write
from tests.pagecache import dropped, resident

pytestmark = pytest.mark.usefixtures("no_thread_is_left")

LARGE = 8 << 20  # bytes
COLUMN = [("x", "bytes", "uint8", (LARGE,), True)]
WHOLE = {"crop": "center", "height": 1500, "width": 2000, "shorter": 1500}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Twelve records of 8 MiB."""
    record = _core.encode_example({"x": bytes(LARGE)})
    return write(tmp_path_factory.mktemp("large") / "a", [record] * 12)


def one_by_one(path, features, **options):
    """A reader that makes each batch while next() waits for it, so that nothing is hidden."""
    return reader_of(
        path,
        features,
        batch_size=1,
        threads=1,
        prefetch_bytes=0,
        memory=1,
        shuffle=False,
        **options,
    )


def most(reader):
    """The stage that was waited for most, besides a processor, which other programs may use."""
    seconds = reader.seconds_by_stage
    assert sum(seconds.values()) == pytest.approx(reader.seconds_waited, rel=0.05, abs=0.001)
    del seconds["other"]
    return max(seconds, key=seconds.get)


def test_stages_have_no_seconds_when_batches_are_ready(shard):
    reader = reader_of(shard, batch_size=2, prefetch_bytes=1 << 30)
    until(lambda: not reader_threads())  # they end when everything is made
    assert len(batches(reader)) == 100
    assert set(reader.seconds_by_stage.values()) == {0.0}
    assert reader.take_spans() == []


def test_evicted_file_is_waited_for_while_it_is_read(large):
    dropped(large)
    if any(resident(large)):
        pytest.skip("the file system of the temporary directory keeps its files in memory")

    def seconds_of_reading(is_cold):
        if is_cold:
            dropped(large)
        reader = one_by_one(large, COLUMN)
        batches(reader)
        return reader.seconds_by_stage["read"]

    # Other processes may delay each pass, so the shortest of three counts.
    cold, warm = (min(seconds_of_reading(each) for _ in range(3)) for each in (True, False))
    assert cold > 2 * warm


def test_large_values_are_waited_for_while_they_are_verified(large):
    batches(one_by_one(large, COLUMN))
    warm = one_by_one(large, COLUMN)
    batches(warm)
    assert most(warm) in ("verify", "assemble")  # assemble: the kernel clears new memory


def test_large_pictures_are_waited_for_while_they_are_decoded(tmp_path):
    picture = encoded(smooth(1500, 2000))
    path = write(tmp_path / "a", [_core.encode_example({"x": picture})] * 6)
    feature = ("x", "bytes", "bytes", (), False, {"image": WHOLE})
    reader = one_by_one(path, [feature])
    batches(reader)
    assert most(reader) == "decode"


def test_a_held_gil_is_waited_for_as_gil(shard):
    """The rival keeps the GIL for half a second whenever next() gives it away."""
    reader = one_by_one(shard, FEATURES)
    stop = threading.Event()

    def compute():
        while not stop.is_set():
            pass

    rival = threading.Thread(target=compute)
    interval = sys.getswitchinterval()
    rival.start()
    try:
        sys.setswitchinterval(0.5)
        while reader.seconds_by_stage["gil"] < 0.2:
            assert reader.next() is not None
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        rival.join()
    assert most(reader) == "gil"


def test_wrapping_one_by_one_is_waited_for_as_copy(shard):
    def slow(array):
        time.sleep(0.01)  # stands for a copy to a device
        return array

    reader = one_by_one(shard, FEATURES[:1], wrap={"label": slow}, one_by_one=True)
    for _ in range(3):
        reader.next()
    assert most(reader) == "copy"
    assert sum(stage == "copy" for stage, _, _ in reader.take_spans()) == 3


def test_each_delivered_batch_counts_the_fill_of_the_queue(shard):
    reader = reader_of(shard, batch_size=2, prefetch_bytes=1 << 30)
    until(lambda: not reader_threads())
    for _ in range(3):
        reader.next()
    assert reader.queue_counts == [0] * 31 + [3]  # all the rest is made, so the queue is full
    assert reader.queue == 1
    reader.restart()
    assert sum(reader.queue_counts) == 0
    empty = one_by_one(shard, FEATURES)
    empty.next()
    assert empty.queue_counts[0] == 1


def test_longest_waits_are_returned_once_with_their_time(large):
    began = time.monotonic()
    reader = one_by_one(large, COLUMN)
    batches(reader)
    ended = time.monotonic()
    spans = reader.take_spans()
    assert 0 < len(spans) <= 12
    for stage, begin, seconds in spans:
        assert stage in reader.seconds_by_stage
        assert began <= begin <= begin + seconds <= ended
    assert sum(seconds for _, _, seconds in spans) <= reader.seconds_waited
    assert reader.take_spans() == []


def test_at_most_64_waits_are_kept_and_they_are_the_longest(shard):
    seconds = [0.002] * 70 + [0.1] * 3 + [0.002] * 27
    lengths = iter(seconds)

    def slow(array):
        time.sleep(next(lengths))
        return array

    reader = one_by_one(shard, FEATURES[:1], wrap={"label": slow}, one_by_one=True)
    for _ in range(100):
        reader.next()
    spans = reader.take_spans()
    assert len(spans) == 64
    assert sum(seconds >= 0.1 for _, _, seconds in spans) >= 3


# pulse


@pytest.fixture
def endless(tmp_path):
    """A file whose every record is corrupt: looking for a good one takes seconds."""
    path = tmp_path / "a"
    frame = bytearray(frames([example(1)]))
    frame[-1] ^= 1
    path.write_bytes(frame * 2_000_000)
    return (str(path), np.arange(2_000_000, dtype=np.uint64) * np.uint64(len(frame)))


def test_pulse_is_called_once_a_second_within_a_long_wait(endless):
    pulses = []
    figures = []

    def pulse():
        pulses.append(time.monotonic())
        figures.append(seen[0].seconds_waited)
        if len(pulses) == 2:
            raise StopAsyncIteration  # ends the wait

    seen = []
    began = time.monotonic()
    reader = BatchReader([endless], FEATURES, batch_size=1, threads=1, pulse=pulse)
    seen.append(reader)
    with pytest.raises(StopAsyncIteration):
        reader.next()
    seen.clear()
    assert pulses[0] - began >= 0.99
    assert pulses[1] - pulses[0] >= 0.99
    assert figures[1] - figures[0] == pytest.approx(pulses[1] - pulses[0], abs=0.2)
    reader.close()


def test_an_exception_of_pulse_is_raised_and_loses_no_batch(shard):
    interrupts = []

    def pulse():
        if not interrupts:
            interrupts.append(time.monotonic())
            raise KeyboardInterrupt

    reader = reader_of(shard, FEATURES, batch_size=1, shuffle=False, pulse=pulse)
    deadline = time.monotonic() + 30
    found = []
    while not interrupts:
        assert time.monotonic() < deadline
        try:
            if (batch := reader.next()) is None:
                reader.restart()
                found.clear()
            else:
                found.append(int(batch["label"][0]))
        except KeyboardInterrupt:
            pass
    found += labels(reader)
    assert found == list(range(200))


# marks


class Mark:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("enter")

    def __exit__(self, *_):
        self.log.append("exit")


def test_next_is_marked_only_while_the_profiler_runs(shard):
    log = []
    flags = {}
    marks = flags, "enabled", lambda: Mark(log)
    reader = reader_of(shard, batch_size=2, on_corrupt="raise", marks=marks)
    reader.next()
    flags["enabled"] = False
    reader.next()
    assert log == []
    flags["enabled"] = True
    assert reader.next() is not None
    assert log == ["enter", "exit"]
    reader.close()
    with pytest.raises(RuntimeError, match="closed"):
        reader.next()
    assert log == ["enter", "exit"] * 2
