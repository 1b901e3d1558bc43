"""What a consumer takes of a tf.data pipeline, and how long it waits, counted by the pipeline itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import tensorflow as tf

from cachecd_client.elsewhere import Given
from cachecd_client.tf_functions import as_it_is

_PATIENCE = 1.0  # seconds for what takes microseconds


class Clock:
    """Counts what is taken of the pipelines that it has timed, of all their iterators together.

    Waiting is what passes between the request for a batch and its delivery, as TensorFlow sees it where
    `timed` stands: behind all that runs ahead of the consumer. Python has no part in it. To be made where
    TensorFlow is eager.
    """

    def __init__(self) -> None:
        self._last = Given()
        # Outside of a strategy's scope, in which it would be one variable for each replica.
        # TensorFlow may look for its devices first, which takes seconds where there are some.
        self._sums = _in_a_thread(self._made, patience=None)

    @staticmethod
    def _made() -> tf.Variable:
        with tf.device("CPU:0"):
            # Steps, records, seconds waited, and seconds from each pass's first request on.
            return tf.Variable(tf.zeros([4], tf.float64), trainable=False)

    def read(self) -> Given:
        """What was taken until now. Never fails: where TensorFlow cannot say it, as at the end of the
        process, it is what it said last."""
        with contextlib.suppress(Exception):
            # A lease may be released where a graph is built, in which there are no values.
            eager = tf.executing_eagerly()
            self._last = self._now() if eager else _in_a_thread(self._now, _PATIENCE)
        return self._last

    def _now(self) -> Given:
        steps, records, waited, elapsed = self._sums.numpy()
        return Given(int(steps), int(records), float(waited), float(elapsed))

    def timed(self, batches: tf.data.Dataset, rows: Callable[[Any], Any]) -> tf.data.Dataset:
        """The same batches; `rows` says how many records are in one, as a tensor."""

        @as_it_is
        def taken(last: Any, asked_and_batch: Any) -> Any:
            asked, batch = asked_and_batch
            now = tf.maximum(tf.timestamp(), asked)  # the machine's clock may be set back
            waited = now - asked
            elapsed = tf.where(last < 0, waited, tf.maximum(now - last, waited))
            self._sums.assign_add([1.0, tf.cast(rows(batch), tf.float64), waited, elapsed])
            return now, batch

        # A zip asks its parts one after the other, so the clock is read before the batch is there.
        asked = tf.data.Dataset.range(tf.int64.max).map(as_it_is(lambda _: tf.timestamp()))
        never = tf.constant(-1.0, tf.float64)
        return tf.data.Dataset.zip((asked, batches)).scan(never, taken)


def _in_a_thread(function: Callable[[], Any], patience: float | None) -> Any:
    """What the function returns or raises in a thread of its own, which has none of this one's scopes;
    TimeoutError after so many seconds."""
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(function())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found.result(patience)
