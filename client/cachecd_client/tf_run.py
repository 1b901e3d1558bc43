"""A whole run as one stock tf.data pipeline, which changes leases at its own boundaries.

A set's pipeline runs inside a flat_map, which asks for the next set when the one before has come to its
end and its readers are gone, whatever is prefetched behind it. There, once a set, Python is called: it
acquires the next lease, releases the last, and says which files to read.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import sys
import weakref
from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypedDict, cast

import tensorflow as tf

from cachecd_client.division import last_of
from cachecd_client.elsewhere import Given, Lent, Stretch
from cachecd_client.epoch import Epoch
from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.iterating import Iterating
from cachecd_client.numbering import Numbering
from cachecd_client.options import flag, integer
from cachecd_client.reading import LARGEST_SEED, place
from cachecd_client.schema import Feature
from cachecd_client.tensorflow import check_replicas
from cachecd_client.tf_clock import Clock
from cachecd_client.tf_pipeline import (
    PASS_SPEC,
    Pass,
    Pipeline,
    clock_here,
    refuse_keras_sharding,
)

if TYPE_CHECKING:
    from cachecd_client.tf_session import TensorFlowRuns

log = logging.getLogger("cachecd")


class RunOptions(TypedDict, total=False):
    """What `Cache.tf_dataset` takes beside the dataset's name, the batch size and `epochs`."""

    label: str | None
    start: int
    job: str | None
    timeout: float | None
    shuffle: bool | None
    seed: int | None
    drop_last: bool | None
    pad_last: bool | None
    features: Sequence[str] | None
    rank: int | None
    world: int | None


def dataset(
    cache: TensorFlowRuns,
    name: str,
    batch_size: int,
    numbering: Numbering,
    *,
    epochs: int | None,
    label: str | None = None,
    start: int = 0,
    job: str | None = None,
    timeout: float | None = None,
    shuffle: bool | None = None,
    seed: int | None = None,
    drop_last: bool | None = None,
    pad_last: bool | None = None,
    features: Sequence[str] | None = None,
    rank: int | None = None,
    world: int | None = None,
) -> tf.data.Dataset:
    """The pipeline that `Cache.tf_dataset` describes."""
    if epochs is not None:
        integer("epochs", epochs, 1)
    if seed is not None:
        integer("seed", seed, 0, LARGEST_SEED)
    integer("start", start, 0)
    sets = _Sets(cache, name, numbering, epochs, start, job, timeout, seed)
    try:
        first = sets.first
        last = last_of(drop_last, pad_last, not first.pinned)
        check_replicas(last != "short")
        refuse_keras_sharding()
        rank, world = place(rank, world)
        integer("batch_size", batch_size, 1)
        sets.pipeline = pipeline = Pipeline(
            Pipeline.features_of(first.schema, features, label),
            batch_size,
            label,
            not first.pinned if shuffle is None else flag("shuffle", shuffle),
            last,
            rank,
            world,
        )
        batches = pipeline.divided(first.num_records).steps
        _, batch_bytes = sets.one_pass(first, 0)
        passes = tf.data.Dataset.from_generator(sets, output_signature=PASS_SPEC)
        serialized = passes.flat_map(pipeline.serialized)
        if epochs is None:
            endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
            serialized = serialized.apply(endless)
        # Batches made ahead must not be those of several small sets, leased long before they are used.
        sets.clock = clock_here()
        ready = pipeline.ready(serialized, max(1, batches // 4), batch_bytes, sets.clock)
    except BaseException:
        sets.close()
        raise
    # TensorFlow keeps what `from_generator` calls for ever, in a graph of its own. In a graph of
    # TensorFlow 1 the dataset itself is gone before a session makes its iterator.
    owner = ready if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    weakref.finalize(owner, sets.close)
    return ready


class _Begun(NamedTuple):
    """An iterator's epochs: the first, those that follow it, and how many iterators came before."""

    first: Epoch
    rest: Generator[Epoch, None, None]
    ordinal: int


class _Sets:
    """The sets of a dataset's epochs, for each iterator anew, as `from_generator` calls for them.

    The first iterator takes over the lease that told the schema. A lease ends with its iterator; that
    of a dataset which nobody iterates over, with the dataset.
    """

    pipeline: Pipeline
    clock: Clock | None = None
    stretch: Stretch | None = None

    def __init__(
        self,
        cache: TensorFlowRuns,
        name: str,
        numbering: Numbering,
        epochs: int | None,
        start: int,
        job: str | None,
        timeout: float | None,
        seed: int | None,
    ) -> None:
        self._cache = cache
        self._name = name
        self._numbering = numbering
        self._epochs = epochs
        self._start = start
        self._job = job
        self._timeout = timeout
        self._seed = seed
        self._begun = [self._begin()]

    @property
    def first(self) -> Epoch:
        """The epoch that is leased before anybody iterates."""
        return self._begun[0].first

    def __call__(self) -> Iterator[Pass]:
        return Iterating(self._passes(), self._cache.close)

    def _passes(self) -> Generator[Pass, None, None]:
        try:
            begun, waited = self._begun.pop(), False  # for its set was the caller of tf_dataset()
        except IndexError:
            begun, waited = self._begin(), True
        with contextlib.closing(begun.rest):
            for epoch in chain([begun.first], begun.rest):
                if epoch.released:
                    raise CallerError(
                        f"the session that leases {self._name!r} was closed: iterate over the dataset "
                        "before close(), or the end of the with-block"
                    )
                if differing := _differing(self.pipeline.features, epoch):
                    raise SchemaError(
                        f"epoch {epoch.epoch} of {self._name!r} has another schema than the one that "
                        f"this dataset was made for, its generation has changed: {differing}; call "
                        "tf_dataset() again, and go on with what it gives"
                    )
                self._numbering.reached(epoch.epoch)
                one, _ = self.one_pass(epoch, begun.ordinal)
                epoch.lend(self._lent(epoch, waited))
                waited = True
                log.info(
                    "%s: epoch %d reads %d records in %d files",
                    self._name, epoch.epoch, epoch.num_records, len(one.files),
                )  # fmt: skip
                yield one
        self._numbering.finished(epoch.epoch)

    def one_pass(self, epoch: Epoch, ordinal: int) -> tuple[Pass, int]:
        """What the pipeline reads of the epoch, and about how many bytes a batch has."""
        base, *own = (epoch.seed,) if self._seed is None else (self._seed, epoch.epoch)
        seed, shared = _mixed(base, *own, ordinal), _mixed(base, *own)
        division = self.pipeline.divided(epoch.num_records)
        return self.pipeline.one_pass(epoch.files, division, epoch.num_bytes, seed, shared)

    def _lent(self, epoch: Epoch, waited: bool) -> Lent:
        """All of the epoch's batches; for its set the pipeline has `waited`. What is taken from the last
        boundary on is its: so what was read ahead of the set before is counted with this one."""
        own = self.pipeline
        if self.clock is not None:
            begin = None if self.stretch is None else self.stretch.stop()
            self.stretch = Stretch(self.clock.read, begin)
        steps = max(1, epoch.num_records // (own.batch_size * own.world))
        return Lent("TensorFlow", steps, own.batch_size, own.world, self.stretch, leases=waited)

    def close(self) -> None:
        """Ends the lease that no iterator has taken over yet; one that comes later takes its own."""
        try:
            begun = self._begun.pop()
        except IndexError:
            return
        begun.first.lend(Lent("TensorFlow", 1, 1, 1, Stretch(Given)))  # nobody has read of it
        begun.rest.close()

    def _begin(self) -> _Begun:
        number, ordinal = self._numbering.begin(self._start)
        n = sys.maxsize if self._epochs is None else number + self._epochs
        epochs = cast(
            "Generator[Epoch, None, None]",
            # It is a thread of TensorFlow's that comes to a boundary, whenever it likes.
            self._cache.epochs(
                self._name, n, self._job, start=number, timeout=self._timeout, agree=False
            ),
        )
        return _Begun(next(epochs), epochs, ordinal)


def _differing(parsed: Sequence[Feature], epoch: Epoch) -> str:
    """The first feature that the epoch's records have otherwise than it is parsed, and how."""
    for feature in parsed:
        if feature.name not in epoch.schema.names:
            return f"there is no feature {feature.name!r} any more"
        if (now := epoch.schema[feature.name]) != feature:
            return f"{feature} is now {now}"
    return ""


def _mixed(seed: int, *numbers: int) -> int:
    """A seed for each row of numbers; for zeros, the seed itself."""
    if not any(numbers):
        return seed
    digest = hashlib.sha256(f"cachecd tf.data order {seed} {numbers}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
