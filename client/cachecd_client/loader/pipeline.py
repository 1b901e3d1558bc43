"""The stages between the native reader and the loop: prepare, framework, device, label."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from cachecd_client._core import BatchReader, Division
from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.loader.columns import Bytes, Ragged, RaggedBytes
from cachecd_client.loader.figures import Figures, Sums
from cachecd_client.loader.framework import ADDED, IDS, Framework, Numpy, Stage, Wrap, renumbered
from cachecd_client.loader.options import Batch, Delivery, Prepare
from cachecd_client.loader.reading import Reading
from cachecd_client.protocol import Span
from cachecd_client.schema import NUMERIC_DTYPES, Feature, Schema

Source: TypeAlias = "BatchReader | Ahead"


_SHOWN = 1e-3  # seconds; a timeline does not show shorter waits
_PULSE = 1.0  # seconds of waiting until the next call of `pulse`

Delivered = tuple[int, int, int, float]  # a source's position, bytes_read, zeros and queue_filled


class Ahead:
    """A stage that takes batches from a source ahead of the loop, and sends them through a lane. As in a
    BatchReader, its figures count delivered batches; `queue_counts` counts pending batches too.

    If making a batch raises an Exception, it is raised after the previous batches. Any other exception
    (KeyboardInterrupt) is raised at once. A closed pass ends at once.
    """

    _stage = "copy"

    def __init__(
        self, source: Source, lane: Stage | None, most: int = 2, pulse: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """`most`: how many batches are pending when the oldest is delivered. `pulse` is called once a
        second in a long wait."""
        self._lane = lane
        self._source = source
        self._most = most
        self._pulse = pulse
        self._pending: deque[tuple[Any, Delivered]] = deque()
        self._process = os.getpid()
        self._closed = False
        self.position, self.bytes_read, self.zeros, self.queue_filled = self._delivered()
        self._answered = self._waited = 0.0
        self._spans: deque[Span] = deque(maxlen=1000)  # more than the loop can wait in a second

    @property
    def seconds_waited(self) -> float:
        return self._source.seconds_waited + self._waited

    @property
    def seconds_by_stage(self) -> dict[str, float]:
        return Sums(self._source.seconds_by_stage) + {self._stage: self._waited}

    @property
    def seconds_idle(self) -> float:
        return time.monotonic() - self._answered if self._answered else 0.0

    @property
    def queue(self) -> float:
        return self._source.queue

    @property
    def queue_counts(self) -> list[int]:
        return self._source.queue_counts

    def take_spans(self) -> list[Span]:
        spans = [*self._source.take_spans(), *self._spans]
        self._spans.clear()
        return spans

    def close(self) -> None:
        """Ends the pass, and drops the pending batches."""
        self._closed = True

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = iter(self._source)
        end: Exception | None = None
        while not self._closed:
            while end is None and len(self._pending) < self._most:
                number = self._source.position
                try:
                    self._pending.append((self._send(next(batches), number), self._delivered()))
                except Exception as error:  # also StopIteration
                    end = error
            if not self._pending:
                break
            yield self._next()  # a variable would keep the batch while the next one is made
        self._answered = time.monotonic()
        try:
            if self._closed:
                raise RuntimeError("closed")
            if end is not None and not isinstance(end, StopIteration):
                raise end
        finally:
            del end  # because its traceback refers to this frame

    def _next(self) -> dict[str, Any]:
        sent, delivered = self._pending.popleft()
        if os.getpid() != self._process:
            raise RuntimeError("the pending batches belong to the parent process")
        batch = self._receive(sent)
        self.position, self.bytes_read, self.zeros, self.queue_filled = delivered
        self._answered = time.monotonic()
        return batch

    def _delivered(self) -> Delivered:
        source = self._source
        return source.position, source.bytes_read, source.zeros, source.queue_filled

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Counts the time of the block as waiting."""
        began = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            self._waited += seconds
            if seconds >= _SHOWN:
                self._spans.append((self._stage, began, seconds))

    def _send(self, batch: dict[str, Any], number: int) -> Any:
        """Begins to make the batch with this number. Returns a token for `_receive`."""
        assert self._lane is not None
        if self._lane.is_busy:  # the device does not wait for this batch
            return self._lane.send(batch)
        with self._waiting():
            return self._lane.send(batch)

    def _receive(self, sent: Any) -> dict[str, Any]:
        assert self._lane is not None
        return self._lane.receive(sent)


class Pipeline:
    """The stages of a loader's batches. It has one pass at a time."""

    def __init__(
        self, reading: Reading, deliveries: Sequence[Delivery], framework: Framework, division: Division,
        *, rank: int, world: int, ids: bool, pad_last: bool, label: str | None, prepare: Prepare | None,
    ) -> None:  # fmt: skip
        """SchemaError if a feature has a name that the loader adds, or if the label is not a feature; also
        the errors of the framework. The columns of `prepare` are checked when it returns them."""
        self.framework = framework
        self.schema = Schema(tuple(delivery.delivered for delivery in deliveries))
        self._division, self._rank, self._world = division, rank, world
        added = dict(ADDED)
        if reading.datasets is None:
            del added["_dataset"]
        for name in (f"_{d.delivered.name}_length" for d in deliveries if "pad" in d.options):
            added[name] = Feature(name, "int64", "int64", ())
        if taken := added.keys() & set(self.schema.names):
            raise SchemaError(
                f"the loader adds {sorted(taken)}: do not select features with these names, or rename them"
            )
        present = {"_valid": pad_last, **dict.fromkeys(IDS, ids)}
        columns = [*self.schema.features, *(f for n, f in added.items() if present.get(n, True))]
        if prepare is not None and not callable(prepare):
            raise CallerError(f"prepare={prepare!r}, expected a function")
        first: Framework = framework if prepare is None else Numpy()
        wraps: dict[str, Wrap] = {f.name: first.wrap(f) for f in columns}
        if ids and reading.shards is not None:
            wraps["_shard"] = renumbered(wraps["_shard"], reading.shards)
        #: The arguments of a BatchReader for the columns of its batches.
        self.for_reader: dict[str, Any] = {
            "features": [(*each.stored.for_reader(), each.options) for each in deliveries],
            "wrap": {name: wrap.call for name, wrap in wraps.items()},
            "dlpack": {name for name, wrap in wraps.items() if wrap.dlpack},
            "one_by_one": first.copies,
            "marks": framework.marks,
        }
        #: The tokens of each record whose padding the core counts.
        self.masked = sum(
            math.prod(each.stored.shape or ())
            for each in deliveries
            if each.options.get("count_zeros")
        )
        self._prepare = prepare
        self._made: dict[Feature, Wrap] = {}  # conversions of the columns that `prepare` returned
        self._bfloat16 = {f.name for f in self.schema.features if f.dtype == "bfloat16"}
        if label is not None and not isinstance(label, str):
            raise CallerError(f"label={label!r}, expected the name of a feature")
        self._label = label or ""
        if prepare is None:
            framework.check(self.schema, division, rank)
            if label is not None:
                self.schema[label]  # SchemaError
        self._stages: list[Ahead] = []  # of the pass that runs

    def open(
        self, reader: BatchReader, seed: int, pulse: Callable[[], None] | None = None
    ) -> Source:
        """Returns the last stage of the reader's pass. `seed`: the seed of the pass, which determines the
        random numbers of `prepare`. `pulse`: as for Ahead."""
        source: Source = reader
        if self._prepare is not None:
            source = Prepared(source, partial(self._call, seed), self._finish, pulse)
            self._stages.append(source)
        if self.framework.lane is not None:
            source = Ahead(source, self.framework.lane)
            self._stages.append(source)
        return source

    def close(self) -> None:
        while self._stages:
            self._stages.pop().close()

    def deliver(self, batches: Iterable[dict[str, Any]]) -> Iterable[Any]:
        return map(self._labelled, batches) if self._label else batches

    def _labelled(self, batch: dict[str, Any]) -> tuple[Any, ...]:
        """Returns (inputs, label), and the mask of padding if there is one: Keras uses it as sample
        weights."""
        if self._label not in batch:
            raise SchemaError(f"prepare returned no column {self._label!r}, which is the label")
        label = batch.pop(self._label)
        return (batch, label, batch.pop("_valid")) if "_valid" in batch else (batch, label)

    def _call(self, seed: int, batch: dict[str, Any], number: int) -> dict[str, Any]:
        assert self._prepare is not None
        place = self._division.begin(number, self._rank) * self._world + self._rank
        key = np.array([seed, place], np.uint64)
        return prepared(self._prepare, batch, np.random.Generator(np.random.Philox(key=key)))

    def _finish(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Converts the columns that `prepare` returned to values of the framework."""
        features = [feature_of(n, column, n in self._bfloat16) for n, column in batch.items()]
        if not self._made:
            self.framework.check(Schema(tuple(features)), self._division, self._rank)
        for feature in features:
            if feature not in self._made:
                self._made[feature] = self.framework.wrap(feature, made=True)
            if (make := self._made[feature].call) is not None:
                batch[feature.name] = make(batch[feature.name])
        return batch


_NUMBERS = NUMERIC_DTYPES - {"bfloat16"}  # NumPy lacks bfloat16
_THREADS = 2
_AHEAD = _THREADS + 1  # batches that threads prepare, or that wait for their turn


class Prepared(Ahead):
    """Prepares batches in threads, ahead of the loop."""

    _stage = "prepare"

    def __init__(
        self, source: Source, prepare: Callable[[Batch, int], Batch], finish: Callable[[Batch], Batch],
        pulse: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """A thread calls `prepare` with a batch and its number; the loop calls `finish` with the result."""
        super().__init__(source, None, _AHEAD, pulse)
        self._prepare = prepare
        self._finish = finish
        self._threads = ThreadPoolExecutor(_THREADS, "cachecd-prepare")

    def close(self) -> None:
        """Ends the pass and the threads. Waits for running calls of `prepare`."""
        super().close()
        if os.getpid() == self._process:
            self._threads.shutdown(cancel_futures=True)
        self._pending.clear()

    def _send(self, batch: Batch, number: int) -> Future[Batch]:
        return self._threads.submit(self._prepare, batch, number)

    def _receive(self, sent: Future[Batch]) -> Batch:
        while not sent.done():
            with self._waiting():
                wait([sent], _PULSE)
            if not sent.done() and self._pulse is not None:
                self._pulse()
        try:
            prepared = sent.result()
        except CancelledError:
            raise RuntimeError("closed") from None
        return self._finish(prepared)


def figures_of(
    source: Source, division: Division, rank: int, step: int, dropped: int, *, start: int,
    elapsed: float, opening: float, masked: int,
) -> Figures:  # fmt: skip
    """Returns the figures of a pass from batch `start` on. `step`: records of a step across all ranks;
    `dropped`: records that the whole pass omits; `opening`: seconds to open its files; `masked`: see
    Pipeline."""
    end = source.position
    is_whole = end == division.steps
    reads = min(end * step, division.records) - min(start * step, division.records)
    omitted = max(0, division.records - division.steps * step) if is_whole else 0
    stages = Sums({"open": opening}) + source.seconds_by_stage
    waited = opening + source.seconds_waited
    stages += {"other": max(0.0, waited - sum(stages.values()))}
    records = division.begin(end, rank) - division.begin(start, rank)
    return Figures(
        steps=end - start,
        records=records,
        reads=reads,
        rows=(end - start) * step,
        delivered=reads + (omitted if omitted < step else 0),
        dropped=dropped if is_whole else 0,
        bytes=source.bytes_read,
        masked=records * masked,
        padding=source.zeros,
        waited=waited,
        # If a loop stops after the last batch, the pass does not end.
        elapsed=elapsed - (source.seconds_idle if is_whole else 0.0),
        queue=source.queue_filled,
        stages=stages,
        fills=Sums({fill: steps for fill, steps in enumerate(source.queue_counts) if steps}),
    )


def prepared(prepare: Prepare, batch: Batch, random: np.random.Generator) -> Batch:
    """Calls `prepare`. Returns its columns in a layout that every framework accepts. SchemaError if a value
    is not a column, or has another number of rows."""
    rows = len(next(iter(batch.values()), ()))
    made = prepare(batch, random)
    if not isinstance(made, Mapping) or not all(isinstance(name, str) for name in made):
        raise SchemaError(
            f"prepare returned a {type(made).__name__}, expected a dict of name -> column"
        )
    return {name: _column(name, value, rows) for name, value in made.items()}


def _column(name: str, value: Any, rows: int) -> Any:
    numbers = isinstance(value, np.ndarray) and value.ndim and value.dtype.name in _NUMBERS
    if not numbers and not isinstance(value, (Bytes, Ragged, RaggedBytes)):
        array = isinstance(value, np.ndarray)
        actual = f"{value.dtype}{list(value.shape)}" if array else type(value).__name__
        raise SchemaError(
            f"prepare returned {actual} for {name!r}, expected an array of numbers [{rows}, ...], or a "
            "column"
        )
    if len(value) != rows:
        raise SchemaError(f"prepare returned {len(value)} rows of {name!r}, expected {rows}")
    # A layout that every framework accepts.
    return np.require(value, value.dtype.newbyteorder("="), ["C", "W"]) if numbers else value


def feature_of(name: str, column: Any, bfloat16: bool) -> Feature:
    """Returns the feature for this column. `bfloat16`: uint16 numbers are bfloat16."""
    if isinstance(column, np.ndarray):
        dtype = column.dtype.name
        dtype = "bfloat16" if bfloat16 and dtype == "uint16" else dtype
        return Feature(name, "bytes", dtype, column.shape[1:], raw=True)
    if isinstance(column, Ragged):
        return Feature(name, "bytes", column.values.dtype.name, None)
    return Feature(name, "bytes", "bytes", () if isinstance(column, Bytes) else None)
