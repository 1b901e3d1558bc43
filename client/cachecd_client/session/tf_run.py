"""A whole run as one stock tf.data pipeline: a generator acquires each set, and TensorFlow reads its files.

The generator yields one element for each set. TensorFlow's flat_map requests the next set when it has read
the previous set, but its readers may still have files of that set open. So a lease ends one set later.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Self

import tensorflow as tf

from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.frameworks.tensorflow import check_replicas
from cachecd_client.frameworks.tf_pipeline import PASS_SPEC, Pass, TfPipeline, refuse_keras_sharding
from cachecd_client.loader.options import TfOptions, refuse_unknown
from cachecd_client.loader.reading import Lent, omitted_records, place, settle
from cachecd_client.options import integer
from cachecd_client.runs.epoch import Epoch
from cachecd_client.schema import Feature
from cachecd_client.session.epochs import Epochs

log = logging.getLogger("cachecd")

_QUIET = 0.2  # seconds until TensorFlow's threads have left Python when the process ends


class PipelineOptions(TfOptions, total=False):
    """The options of `Cache.tf_dataset` besides dataset, batch size and `epochs`."""

    start: int
    job: str | None
    timeout: float | None


class Numbers:
    """Numbers the epochs of one job, dataset and rank across all iterators of a session. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0

    def take(self, least: int) -> int:
        with self._lock:
            number = max(least, self._next)
            self._next = number + 1
            return number


def dataset(
    session: Epochs, interrupt: Callable[[], None], name: str, batch_size: int, numbers: Numbers,
    epochs: int | None, options: PipelineOptions,
) -> tf.data.Dataset:  # fmt: skip
    """Makes the pipeline that `Cache.tf_dataset` describes. `interrupt` ends the session. `numbers` counts
    the epochs of all iterators of the dataset."""
    refuse_unknown(options, PipelineOptions, "tf_dataset() takes dataset, batch_size, epochs")
    if epochs is not None:
        integer("epochs", epochs, 1)
    start = integer("start", options.get("start", 0), 0)
    settle(options, True, 0, True)  # before anything is leased
    take = partial(session.take, name, job=options.get("job"), timeout=options.get("timeout"))
    sets = _Sets(session, interrupt, name, take, partial(numbers.take, start), epochs, options)
    try:
        first = sets.first()
        shuffle, _, last = settle(options, not first.pinned, 0, not first.pinned)
        check_replicas(last != "short")
        refuse_keras_sharding()
        rank, world = place(options.get("rank"), options.get("world"))
        integer("batch_size", batch_size, 1)
        sets.pipeline = pipeline = TfPipeline(
            TfPipeline.features_of(first.schema, options), batch_size, options.get("label"), shuffle, last,
            rank, world,
        )  # fmt: skip
        batches = pipeline.divided(first.num_records).steps
        _, batch_bytes = sets.one_pass(first)
        passes = tf.data.Dataset.from_generator(sets, output_signature=PASS_SPEC)
        serialized = passes.flat_map(pipeline.serialized)
        if epochs is None:
            endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
            serialized = serialized.apply(endless)
        # Few batches ahead, or small sets would be leased long before their batches are used.
        ready = pipeline.ready(serialized, max(1, batches // 4), batch_bytes)
    except BaseException:
        sets.close()
        raise
    # TensorFlow keeps the callable of `from_generator` forever, so the dataset's end closes the sets. In a
    # graph of TensorFlow 1, the dataset is collected before a session makes its iterator.
    owner = ready if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    weakref.finalize(owner, sets.close)
    return ready


class _Sets:
    """Leases one set after another, for each iterator of `from_generator`. The first iterator reads the set
    that `dataset` acquired for its schema."""

    pipeline: TfPipeline

    def __init__(
        self, session: Epochs, interrupt: Callable[[], None], name: str, take: Callable[..., Epoch],
        next_number: Callable[[], int], epochs: int | None, options: PipelineOptions,
    ) -> None:  # fmt: skip
        self._session = session
        self._interrupt = interrupt
        self._name = name
        self._next_number = next_number
        self._epochs = epochs
        self._take = take
        self._seed = options.get("seed")
        self._first: list[Epoch] = []

    def first(self) -> Epoch:
        self._first.append(self._take(self._next_number()))
        return self._first[0]

    def __call__(self) -> _Iterator:
        return _Iterator(self._passes(), self._interrupt)

    def _passes(self) -> Generator[Pass, None, None]:
        held: deque[Epoch] = deque()
        count = 0
        try:
            while count != self._epochs:
                held.append(self._next(held))
                while len(held) > 2:
                    held.popleft().release()
                count += 1
                yield self._begin(held[-1])
        finally:
            for epoch in held:
                epoch.release()

    def _next(self, held: deque[Epoch]) -> Epoch:
        try:
            return self._first.pop()
        except IndexError:
            number = self._next_number()
        if not held:
            return self._take(number)
        take = partial(self._take, number, before=held[-1])
        epoch = self._session.following(held[-1], number, take)
        if epoch.leases == held[-1].leases:
            held.pop()  # no daemon answered, so the lease is the same
        return epoch

    def _begin(self, epoch: Epoch) -> Pass:
        if epoch.released:
            raise CallerError(
                f"the session that leases {self._name!r} was closed: iterate over the dataset "
                "before close(), or the end of the with-block"
            )
        if differing := _differing(self.pipeline.features, epoch):
            raise SchemaError(
                f"epoch {epoch.epoch} of {self._name!r} has another schema than this tf.data pipeline, "
                f"because the generation has changed: {differing}; call tf_dataset() again, and continue "
                "with the new pipeline"
            )
        one, division = self.one_pass(epoch)[0], self.pipeline.divided(epoch.num_records)
        step = self.pipeline.batch_size * self.pipeline.world
        epoch.lend(Lent("TensorFlow", division.steps, step, omitted_records(division, step)))
        log.info(
            "%s: epoch %d reads %d records in %d files",
            self._name, epoch.epoch, epoch.num_records, len(one.files),
        )  # fmt: skip
        return one

    def one_pass(self, epoch: Epoch) -> tuple[Pass, int]:
        seed = epoch.seed if self._seed is None else _mixed(self._seed, epoch.epoch)
        division = self.pipeline.divided(epoch.num_records)
        return self.pipeline.one_pass(epoch.files, division, epoch.num_bytes, seed)

    def close(self) -> None:
        """Ends the lease of the first set if no iterator has read it."""
        while self._first:
            epoch = self._first.pop()
            epoch.lend(Lent("TensorFlow", 0, 1))  # nothing was read
            epoch.release()


class _Iterator:
    """An iterator over a generator that TensorFlow's threads advance.

    When the interpreter ends, it kills native threads that run Python code. The destructors of tf.data's
    iterators join these threads, and would wait forever. So no thread may run Python code at exit:
    `interrupt` ends a long call, and later calls end the iteration.
    """

    def __init__(
        self, generator: Generator[Pass, None, None], interrupt: Callable[[], None]
    ) -> None:
        self._generator = generator
        self._interrupt = interrupt
        self._calling = threading.Lock()
        self._is_over = False
        _alive.add(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Pass:
        with self._calling:
            if self._is_over:
                raise StopIteration
            return next(self._generator)

    def end(self) -> None:
        """Waits for a running call, then releases the leases."""
        self._is_over = True
        if not self._calling.acquire(timeout=_QUIET):
            self._interrupt()
            self._calling.acquire()
        self._generator.close()
        self._calling.release()


_alive: weakref.WeakSet[_Iterator] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for iterator in (alive := list(_alive)):
        iterator.end()
    if not alive:
        return
    del alive, iterator
    # A thread that needs another set drops its iterator. A thread that has enough batches does not.
    deadline = time.monotonic() + _QUIET
    while _alive and time.monotonic() < deadline:
        time.sleep(_QUIET / 10)
    time.sleep(_QUIET / 10)  # until the last thread has left Python


def _differing(parsed: Sequence[Feature], epoch: Epoch) -> str:
    """Returns how the first differing feature differs in the epoch's schema; "" if none differs."""
    for feature in parsed:
        if feature.name not in epoch.schema.names:
            return f"feature {feature.name!r} no longer exists"
        if (now := epoch.schema[feature.name]) != feature:
            return f"{feature} is now {now}"
    return ""


def _mixed(seed: int, epoch: int) -> int:
    digest = hashlib.sha256(f"cachecd tf.data order {seed} {epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
