"""What TensorFlow reads by tf_dataset() is counted by its pipeline, and the epoch tells of it."""

import logging
import time
from itertools import islice

import keras
import tensorflow as tf

from cachecd_client import FileSet, tf_clock
from cachecd_client.keras import TelemetryCallback
from cachecd_client.protocol import Acquire
from cachecd_client.tf_clock import Clock

PAUSE = 0.1  # seconds


def slow(count: int) -> tf.data.Dataset:
    """Numbers, each of which takes a pause to come."""

    def late(number):
        time.sleep(PAUSE)
        return number

    return tf.data.Dataset.range(count).map(
        lambda number: tf.ensure_shape(tf.numpy_function(late, [number], tf.int64), [])
    )


def timed(dataset: tf.data.Dataset) -> tuple[Clock, tf.data.Dataset]:
    clock = Clock()
    options = tf.data.Options()
    options.autotune.enabled = False  # or TensorFlow would put a prefetch behind the clock
    return clock, clock.timed(dataset, lambda _: tf.constant(2)).with_options(options)


def test_a_consumer_that_does_nothing_else_waits_all_the_time():
    clock, batches = timed(slow(5))
    assert [int(number) for number in batches] == [0, 1, 2, 3, 4]
    found = clock.read()
    assert (found.steps, found.records) == (5, 10)
    assert 5 * PAUSE <= found.waited <= found.elapsed


def test_what_is_ready_is_not_waited_for_however_long_the_consumer_takes():
    clock, batches = timed(tf.data.Dataset.range(5).prefetch(5))
    slept = 0.0
    for _ in batches:
        began = time.monotonic()
        time.sleep(PAUSE)
        slept += time.monotonic() - began
    found = clock.read()
    assert found.elapsed >= 4 * PAUSE  # to the request for the last one
    assert found.waited < found.elapsed - 0.7 * slept


def test_pauses_between_passes_are_nobodys_time():
    clock, batches = timed(tf.data.Dataset.range(3))
    for passes in (1, 2):
        began = time.monotonic()
        before = clock.read()
        list(batches)
        assert clock.read().since(before).elapsed <= time.monotonic() - began
        assert clock.read().steps == 3 * passes
        time.sleep(PAUSE)


def test_iterators_side_by_side_are_counted_each():
    clock, batches = timed(tf.data.Dataset.range(3))
    first, second = iter(batches), iter(batches)
    for _ in range(3):
        next(first), next(second)
    assert clock.read().steps == 6


def test_a_clock_that_cannot_be_read_says_what_it_said_last(monkeypatch):
    clock, batches = timed(tf.data.Dataset.range(3))
    list(batches)
    before = clock.read()
    list(batches)
    monkeypatch.setattr(clock, "_sums", None)
    assert clock.read() == before


class TestOfAnEpoch:
    def test_each_record_is_counted_once_a_pass_also_of_a_short_batch(self, cache):
        with cache.acquire("train") as epoch:  # 20 records
            batches = epoch.tf_dataset(8, drop_last=False)
            for passes in (1, 2):
                list(batches)
                found = epoch.report()
                assert (found.steps, found.records) == (3 * passes, 20 * passes)
                assert found.reads_per_record == passes
                assert found.bytes == passes * epoch.num_bytes
            assert found.seconds_waited > 0
            assert found.lent == ""
            assert found.queue is None
        list(batches)
        assert epoch.report().steps == found.steps, "the epoch is over"

    def test_rows_that_are_padding_do_not_count(self, cache):
        with cache.acquire("train") as epoch:
            for rank in range(3):
                list(epoch.tf_dataset(4, pad_last=True, rank=rank, world=3))
            assert epoch.report().records == 20
            assert epoch.report().steps == 6

    def test_ragged_features_are_counted_by_their_rows(self, tmp_path, cache):
        with cache.acquire("train") as epoch:
            names = [f.name for f in epoch.schema.features if f.shape is None]
            assert names
            list(epoch.tf_dataset(10, features=names[:1]))
            assert epoch.report().records == 20

    def test_its_end_is_told_as_that_of_a_loader(self, cache, caplog):
        with (
            caplog.at_level(logging.INFO, "cachecd"),
            cache.acquire("train") as epoch,
        ):
            list(epoch.tf_dataset(5))
        (line,) = [r.getMessage() for r in caplog.records if "epoch 0" in r.getMessage()]
        assert line.startswith("epoch 0 of train: 4 steps, waited ")

    def test_progress_moves_with_its_batches(self, cache):
        for epoch in cache.epochs("train", 2, steps_per_epoch=8):
            found = [epoch.progress for _ in epoch.tf_dataset(5)]
            assert found == [(epoch.epoch + number / 8) / 2 for number in range(1, 9)]

    def test_progress_stays_where_it_was_when_the_epoch_is_over(self, cache):
        for epoch in cache.epochs("train", 2, steps_per_epoch=8):
            batches = epoch.tf_dataset(5)
            list(islice(batches, 4))
            if epoch.epoch == 0:
                first, left = epoch, batches
        assert first.progress == 0.25
        list(left)
        assert first.progress == 0.25
        assert first.report().steps == 4

    def test_a_run_of_records_counts_what_was_taken(self, cache):
        """Sets of 20, 30 and 40 records, of which the first is read three times."""
        passes = iter([3, 1, 1])
        taken = []
        for epoch in cache.epochs("train", records=100):
            batches = epoch.tf_dataset(10)
            taken += [len(list(batches)) for _ in range(next(passes))]
        assert taken == [2, 2, 2, 3, 1]

    def test_an_epoch_is_released_where_a_graph_is_built_and_tells_what_was_taken(
        self, cache, manifest, locked
    ):
        epoch = cache.acquire("train")
        list(epoch.tf_dataset(5))
        with tf.Graph().as_default():
            epoch.release()
            assert epoch.report().steps == 4
        assert not locked(manifest(0))

    def test_made_in_a_strategys_scope_it_counts_all_the_same(self, cache):
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope(), cache.acquire("train") as epoch:
            list(epoch.tf_dataset(5))
            assert epoch.report().steps == 4


def test_files_without_an_epoch_are_read_without_a_clock(cache):
    with cache.acquire("train") as epoch:
        alone = FileSet(epoch.files).tf_dataset(5, shuffle=False)
        batches = iter(alone)
        first = next(batches)["label"].numpy().tolist()
        checkpoint = tf.train.Checkpoint(batches=batches)
        saved = checkpoint.save(str(epoch.files[0]) + ".iterator")
        second = next(batches)["label"].numpy().tolist()
        checkpoint.restore(saved)
        assert next(batches)["label"].numpy().tolist() == second != first


def test_the_wait_for_a_set_is_not_waiting_for_its_batches(cache, granting, cache_dir):
    grant = granting.answer

    def late(request):
        if isinstance(request, Acquire) and request.epoch:
            time.sleep(5 * PAUSE)
        return grant(request)

    granting.answer = late
    batches = iter(cache.tf_dataset("train", 10, features=["label"]))
    list(islice(batches, 3))  # two are the first set's
    found = cache.report("train")
    assert found.seconds_leasing >= 5 * PAUSE
    assert found.seconds_waited < 5 * PAUSE


def test_the_wait_for_the_first_set_is_that_of_whoever_makes_the_pipeline(cache, granting):
    grant = granting.answer

    def late(request):
        if isinstance(request, Acquire):
            time.sleep(5 * PAUSE)
        return grant(request)

    granting.answer = late
    batches = iter(cache.tf_dataset("train", 10, features=["label"]))
    next(batches)
    found = cache.report("train")
    assert found.seconds_leasing >= 5 * PAUSE
    assert found.seconds_waited > 0, "of what the pipeline waited, nothing is taken off"


def test_a_clock_is_made_however_long_tensorflow_looks_for_devices(monkeypatch):
    monkeypatch.setattr(tf_clock, "_PATIENCE", 0.0)
    assert Clock().read().steps == 0


def test_of_one_pipeline_over_many_sets_each_epoch_tells_what_was_taken_in_its_time(cache, caplog):
    with caplog.at_level(logging.INFO, "cachecd"):
        batches = iter(cache.tf_dataset("train", 5, features=["label"]))
        taken = 0
        for size in (20, 30, 40):
            taken += len(list(islice(batches, size // 5)))
        steps = [
            int(r.getMessage().split(": ")[1].split(" step")[0])
            for r in caplog.records
            if " steps, waited" in r.getMessage() or " step, waited" in r.getMessage()
        ]
        now = cache.report("train").steps
    # The boundaries are up to two batches, and what is made beside them, ahead of the consumer.
    assert sum(steps) + now == taken == 18
    assert len(steps) >= 2


def test_one_fit_logs_what_was_waited_in_each_of_keras_epochs(cache):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    dataset = cache.tf_dataset("train", 5, features=["label"])
    pairs = dataset.map(lambda batch: (tf.cast(batch["label"], tf.float32)[:, None],) * 2)
    callback = TelemetryCallback(lambda: cache.report("train"))
    history = model.fit(
        pairs, steps_per_epoch=6, epochs=4, shuffle=False, verbose=0, callbacks=[callback]
    )
    assert len(history.history["data_set_records"]) == 4
    shares = history.history["data_wait_share"]
    assert shares
    assert all(0 <= share <= 1 for share in shares)
    assert "data_queue" not in history.history
