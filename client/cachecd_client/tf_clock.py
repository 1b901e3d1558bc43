"""What a consumer takes of a tf.data pipeline, and how long it waits, counted by the pipeline itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from cachecd_client.elsewhere import Given
from cachecd_client.tf_functions import as_it_is


class Clock:
    """Counts what is taken of the pipelines that it has timed, of all their iterators together.

    Waiting is what passes between the request for a batch and its delivery, as TensorFlow sees it where
    `timed` stands: behind all that runs ahead of the consumer. Python has no part in it.
    """

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            # Steps, records, seconds waited, and seconds from each pass's first request on.
            self._sums = tf.Variable(tf.zeros([4], tf.float64), trainable=False)

    def read(self) -> Given:
        """What was taken until now."""
        steps, records, waited, elapsed = self._sums.numpy()
        return Given(int(steps), int(records), float(waited), float(elapsed))

    def timed(self, batches: tf.data.Dataset, rows: Callable[[Any], Any]) -> tf.data.Dataset:
        """The same batches; `rows` says how many records are in one, as a tensor."""

        @as_it_is
        def taken(last: Any, asked_and_batch: Any) -> Any:
            asked, batch = asked_and_batch
            now = tf.timestamp()
            waited = now - asked
            one = tf.cast(rows(batch), tf.float64)
            self._sums.assign_add([1.0, one, waited, tf.where(last < 0, waited, now - last)])
            return now, batch

        # A zip asks its parts one after the other, so the clock is read before the batch is there.
        asked = tf.data.Dataset.range(tf.int64.max).map(as_it_is(lambda _: tf.timestamp()))
        never = tf.constant(-1.0, tf.float64)
        return tf.data.Dataset.zip((asked, batches)).scan(never, taken)
