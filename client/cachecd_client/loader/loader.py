"""Delivers the batches of a file set in a fixed order. Native threads make them ahead of the loop."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator
from typing import Any, NoReturn, Self, Unpack

import cachecd_client._core as _core
from cachecd_client import resources
from cachecd_client.errors import CallerError, CorruptError, CorruptRecordError
from cachecd_client.loader.figures import Figures
from cachecd_client.loader.framework import Framework
from cachecd_client.loader.options import Batch, Options, deliveries, refuse_unknown
from cachecd_client.loader.pipeline import Pipeline, Source, figures_of
from cachecd_client.loader.reading import (
    LARGEST_SEED,
    CorruptRecord,
    Losses,
    Reading,
    omitted_records,
    seed_of,
    settle,
    weakly,
)
from cachecd_client.options import flag, integer
from cachecd_client.protocol import Span
from cachecd_client.schema import Schema

log = logging.getLogger("cachecd")

_VERSION = 1  # of a state
_PREFETCH = 64 << 20  # bytes
_PREFETCH_SHARE = 16  # at most 1/16 of the memory, which all ranks of a node and all loaders share


#: The message for torch's DataLoader, which requests items by number.
NO_ITEMS = (
    "a loader delivers whole batches in order, not items by number: iterate over the loader itself, "
    "without a DataLoader"
)


class Loader:
    """Iterates over batches, dicts of feature name -> column; each `for` loop is one pass.

    The batches depend only on the files, the shuffle window, the number of the pass, and the options
    `seed`, `shuffle`, `batch_size`, `drop_last`, `pad_last`, `rank` and `world`. In a run, they depend on
    the unread records as well. The loader checks the CRCs of every record. A dense feature is one array
    [rows, *shape] that belongs to the caller; other features are columns (`Ragged`, `Bytes`). Every rank
    gets `len(loader)` batches, and no batch is empty. Only `pad_last` adds rows without a record.

    batch_size: rows per batch of this rank; without `drop_last`, the last batch may have fewer rows.
    shuffle, seed: each pass number has another permutation of the whole set. `set_epoch(n)` numbers the
        next pass. Without `set_epoch`, a single rank numbers its passes 0, 1, 2 ... Several ranks repeat
        the number and the order, because a rank does not know how many passes the other ranks began.
        reshuffle: False: every pass has the order of pass 0. drop_last: omit the records that do not fill
        a batch on every rank. False delivers each record once across ranks: the last batch is short, and
        differs by at most one row between ranks. If a rank has no record for the last batch, the last
        record of its previous batch moves there. pad_last: as drop_last=False, but every batch has
        `batch_size` rows: zeros or empty values fill the last batches, and `_valid`, bool [batch_size],
        says which rows are records. threads: native reading threads; 0: up to four, limited by the
        processors of the cgroup. prefetch_bytes: how far the threads run ahead. Default: 64 MiB, or more
        if the decoded pictures of `threads` + 2 batches need more, but never above 1/16 of the memory of
        the cgroup. on_corrupt: "replace" a corrupt record with another record of this rank, or "raise"
        CorruptRecordError. features: the features to deliver, all by default. ids: add `_shard` and
        `_record`, int64, and in a mixture `_dataset`. cast: {feature: dtype}, the dtype of numbers in
        batches: its name, or a framework's object. Converts as NumPy's astype. Where astype is undefined,
        a value becomes the nearest limit of the integer, and NaN becomes 0. pad: {feature: length} or
        {feature: (length, value)}: a ragged list of numbers becomes a dense row. A longer list is cut,
        and a shorter list is filled with 0 or the value. The column `_FEATURE_length`, int64
        [batch_size], has the number of values in the record, at most `length`. one_hot: {feature:
        classes}, or True for the classes in the schema: a scalar integer becomes a row of float32, or of
        the dtype in `cast`. SchemaError for a record with another class. default: {feature: value} for
        records without the feature: a number for the whole shape, an array of the shape, a list if the
        feature is ragged, or bytes. Without a default, such a record causes a SchemaError, or has an
        empty list if the feature is ragged. rename: {stored name: name in batches}. `features` and the
        options above take stored names; `label`, `channels_last` and `schema` have the names in batches.
        decode: {feature: Image}: a JPEG, a PNG or stored pixels become uint8 [rows, height, width,
        channels], cropped and flipped: see `cachecd_client.Image`. A damaged picture is a corrupt record.
        prepare: a function of a batch and a `numpy.random.Generator`. It gets a dict of NumPy columns as
        `numpy()` delivers them, and returns a dict of arrays and columns with the same number of rows. It
        must not write to them later. Two threads call it, up to three batches ahead of the loop, before
        the framework and the device get the batch. The seed, the pass and the place of the batch's first
        record determine the generator. If the function raises an exception, the loop gets it instead of
        that batch. `schema` has the columns before `prepare`; `channels_last` and `label` name columns
        after it. A uint16 column that it returns with the name of a bfloat16 feature is bfloat16.
        label: the feature that is delivered separately: batches are tuples (dict, label), or with
        `pad_last` (dict, label, `_valid`). `features` need not name it. rank, world: the rank among the
        data-parallel replicas that share the set. All processes of one replica (tensor parallelism) have
        the same rank. Default: the values given to `epochs()`, else the ranks on this node by its launcher
        (`cachecd_client.launcher`), which is right for files of one node. CallerError (including
        SchemaError) if an option or a combination of options is impossible.

    Use it from one thread at a time, in the process that began the pass.
    """

    def __init__(
        self, reading: Reading, batch_size: int, framework: Framework, every: int = 1, /,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        """`every`: deliver only each n-th batch from `position` on, for readers that take turns. `len()`
        and `position` also count the batches of the other readers."""
        refuse_unknown(options, Options, "a loader takes batch_size")
        if (on_corrupt := options.get("on_corrupt", "replace")) not in ("replace", "raise"):
            raise CallerError(f"on_corrupt={on_corrupt!r}, expected 'replace' or 'raise'")
        self._reading = reading
        made = deliveries(reading.schema, options)
        self.batch_size = integer("batch_size", batch_size, 1)
        self.shuffle, self.seed, last = settle(
            options, reading.shuffle, reading.seed, reading.drop_last
        )
        self.reshuffle = flag("reshuffle", options.get("reshuffle", True))
        self._last = last
        self.drop_last, self.pad_last = last == "drop", last == "pad"
        self.rank, self.world = reading.place(options.get("rank"), options.get("world"))
        #: The part of the set that a pass reads, or None if it reads all of it once.
        self.part, self.division = reading.divided(self.batch_size, self.world, last, self.seed)
        #: Records, across all ranks, that `drop_last` omits from a whole pass.
        self.dropped = omitted_records(self.division, self.batch_size * self.world, reading.agreed)
        self._every = integer("every", every, 1)
        self.threads = integer("threads", options.get("threads", 0), 0)
        shapes = [(self.batch_size, *image.shape) for image in options.get("decode", {}).values()]
        #: Bytes of the decoded pictures in one batch; 0 for pictures with unknown shape.
        self.picture_bytes = sum(math.prod(shape) for shape in shapes if -1 not in shape)
        if (prefetch_bytes := options.get("prefetch_bytes")) is None:
            # One decoded batch for each thread (four by default), and two that wait for the loop.
            prefetch_bytes = max(_PREFETCH, ((self.threads or 4) + 2) * self.picture_bytes)
            prefetch_bytes = min(prefetch_bytes, resources.memory() // _PREFETCH_SHARE)
        self.prefetch_bytes = integer("prefetch_bytes", prefetch_bytes, 0)
        self._on_corrupt = on_corrupt
        self._ids = flag("ids", options.get("ids", False))
        self._pipeline = Pipeline(
            reading, made, framework, self.division, rank=self.rank, world=self.world, ids=self._ids,
            pad_last=self.pad_last, label=options.get("label"), prepare=options.get("prepare"),
        )  # fmt: skip
        self.reader = framework.name  # for reports to the daemon
        self._pulse = weakly(reading.pulse, self)
        self._number = 0  # the number of the current or last pass
        self._position = 0  # delivered batches of the pass, including batches before a resume
        self._next: tuple[int, int] | None = (0, 0)  # number and first batch of the next pass
        #: The first batch of the current or last pass.
        self.start = 0
        self._reader: _core.BatchReader | None = None  # the reader of the current pass
        self._source: Source | None = None  # the last stage of the current pass
        self._pass = 0  # counts passes, to distinguish them
        self._idle: _core.BatchReader | None = None  # the reader of the last pass, with open files
        self._losses = Losses(reading.corrupt) if on_corrupt == "replace" else None
        self._process = 0  # the process that made the reader
        self._closed = False
        self._has_warned = False
        self._begun = 0.0  # when the pass began
        self._opening = 0.0  # seconds to open its files
        self._ended = Figures()  # the sum over passes that have ended
        self._corrupt: list[CorruptRecord] = []

    def __len__(self) -> int:
        """Batches of a whole pass, the same on every rank: `steps_per_epoch` if the run has it."""
        return self.division.steps

    def __iter__(self) -> Iterator[Batch]:
        """The next pass from its start, or the rest of the pass that `load_state_dict` set.

        A loader has one pass at a time: a new pass ends the previous pass.
        """
        batches = self._begin()
        this = self._pass
        try:
            # Each line of Python for a batch costs the trainer microseconds, because its step has evicted
            # this code from the processor's caches.
            yield from self._pipeline.deliver(batches)
        except CorruptRecordError as error:
            self._reading.corrupt([(error.path, error.offset, error.why)])
            raise
        except RuntimeError as error:
            if os.getpid() != self._process:
                raise CallerError(
                    "this pass began before the fork, and its reading threads do not exist in this "
                    "process: start a new pass here"
                ) from error
            if self._source is batches and self._pass == this:
                raise
            raise CallerError(
                "this pass has ended: the loader was closed, its lease was released, or another pass "
                "began; make a second loader to read twice at once"
            ) from error
        finally:
            if self._pass == this:
                self._stop()

    @property
    def schema(self) -> Schema:
        """The features of batches: their names, dtypes and shapes after all options but `prepare`.

        `kind` and `raw` describe the stored records. Features that the loader adds are omitted.
        """
        return self._pipeline.schema

    @property
    def position(self) -> int:
        """Batches that the current pass has delivered, or the last pass if no pass runs."""
        return self._position if (pass_ := self._delivering()) is None else pass_.position

    @property
    def seconds_waited(self) -> float:
        """Seconds that the training loop waited in all passes, for a batch or for the files to open."""
        return self._sums().waited

    @property
    def bytes_read(self) -> int:
        """Record bytes delivered in all passes."""
        return self._sums().bytes

    @property
    def queue_filled(self) -> float:
        """How full the queue of prefetched batches was after each delivered batch, as a sum.

        Each term is 0..1 of `prefetch_bytes`; it is 1 if nothing is left to prefetch. Divide the sum by the
        number of batches. Threads pause when the queue is full, and resume when it is half full, so a loop
        that never waits has a mean of 0.5 to 1.
        """
        return self._sums().queue

    @property
    def figures(self) -> Figures | None:
        """The figures of the current pass; None if no pass runs in this process."""
        if (source := self._delivering()) is None:
            return None
        return figures_of(
            source, self.division, self.rank, self.batch_size * self.world, self.dropped,
            start=self.start, elapsed=time.monotonic() - self._begun, opening=self._opening,
            masked=self._pipeline.masked,
        )  # fmt: skip

    @property
    def queue(self) -> float | None:
        """How full the queue of prefetched batches is now, 0..1; None if no pass runs in this process."""
        return None if (source := self._delivering()) is None else source.queue

    def take_spans(self) -> list[Span]:
        """Returns the longest waits since the last call, as (stage, begin, seconds)."""
        return [] if (source := self._delivering()) is None else source.take_spans()

    def _sums(self) -> Figures:
        return self._ended.plus(self.figures or Figures())

    @property
    def corrupt(self) -> list[CorruptRecord]:
        """(path, offset, why) of every corrupt record found in all passes."""
        reader = self._running()
        return self._corrupt + (reader.corrupt if reader else [])

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next pass, which decides its order.

        With several ranks, call it on all of them before each pass, as `set_epoch` of torch's
        DistributedSampler. The current pass continues. If `load_state_dict` set a pass of this number, the
        next pass still resumes it; the state of another pass is dropped.
        """
        number = integer("epoch", epoch, 0)
        if self._next is not None and self._next[0] == number:
            return
        self._next = number, 0
        if self._running() is None:
            self._number, self._position = self._next

    @property
    def next_pass(self) -> tuple[int, int]:
        """The number of the next pass, and the batch at which it begins."""
        return self._next or (self._number + (self.world == 1), 0)

    def warn_of_same_order(self, number: int) -> None:
        """Logs that pass `number` has the order of the previous pass, if pass numbers change the order."""
        if self.shuffle and self.reshuffle:
            log.warning(
                "pass %d of rank %d of %d repeats the order of the previous pass: call set_epoch(n) before "
                "each pass, on all ranks, for another order",
                number, self.rank, self.world,
            )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """The position of this loader as plain values, for `json` and `torch.save`.

        It is the same on every rank at the same step. A loader of a lease adds what `Cache.epochs(state=)`
        needs to resume the run in another process.
        """
        return {**self.pass_state(), **self._reading.about(self)}

    def pass_state(self) -> dict[str, Any]:
        """The part of `state_dict` that concerns only the pass."""
        begun = {"version": _VERSION, "pass": self._number, "position": self.position}
        return {**begun, "seed": self.seed, **self._order()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next pass continue after the last batch that was delivered before `state` was taken.

        CallerError if `state` is not a state, or if it belongs to another file set or to another division
        into batches and ranks, because this loader has no such position.
        """
        if state.get("version") != _VERSION:
            raise CallerError(f"loader state version {state.get('version')!r}, expected {_VERSION}")
        differing = [
            f"{name} {state.get(name)!r} (here {here!r})"
            for name, here in self._order().items()
            if state.get(name) != here
        ]
        if differing:
            raise CallerError(
                f"the state belongs to another loader: {', '.join(differing)}; resume with the "
                "same file set and options, or start the pass again"
            )
        seed = integer("the state's seed", state.get("seed"), 0, LARGEST_SEED)
        position = integer("the state's position", state.get("position"), 0, len(self))
        number = integer("the state's pass", state.get("pass"), 0)
        self._stop()
        self.seed = seed
        self._next = self._number, self._position = number, position

    def close(self) -> None:
        """Ends the pass and its reading threads permanently. Idempotent; batches stay valid."""
        self._closed = True
        self._stop()
        self._idle = None

    def __reduce__(self) -> NoReturn:
        raise CallerError(
            "a loader has threads, so it cannot be pickled: pickle the FileSet or the Epoch, and make the "
            "loader in the process that reads"
        )

    def __getitem__(self, index: object) -> NoReturn:
        raise CallerError(
            f"{NO_ITEMS}; if a DataLoader is required, DataLoader(files.to_dataset(batch_size), "
            "batch_size=None) delivers the same batches"
        )

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}: {len(self)} batches of {self.batch_size} rows, {self.schema}; "
            f"rank {self.rank} of {self.world}, at batch {self.position} of pass {self._number}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _begin(self) -> Source:
        self._reading.begin()
        if self._closed:
            raise CallerError("this loader is closed: make another loader")
        self._stop()
        self._begun = time.monotonic()
        number, start = self.next_pass
        if self._next is None and self.world > 1 and not self._has_warned:
            self._has_warned = True
            self.warn_of_same_order(number)
        # Each pass has other crops, even if the order of records stays the same.
        augment = seed_of(self.seed, number)
        seed = augment if self.shuffle and self.reshuffle else self.seed
        if self._idle is not None and os.getpid() == self._process:
            self._idle.restart(start, seed, augment)  # its files are open
            self._reader = self._idle
        else:
            self._reader = self._new_reader(start, seed, augment)
            self._process = os.getpid()
        self._idle = None
        # After a failed start, the next attempt begins at the same batch.
        self._number, self._position, self._next = number, start, None
        self.start = start
        self._pass += 1
        self._source = self._pipeline.open(self._reader, augment, self._pulse)
        self._opening = time.monotonic() - self._begun
        self._reading.began(self)
        return self._source

    def _new_reader(self, start: int, seed: int, augment: int) -> _core.BatchReader:
        reader = _core.BatchReader(
            self._reading.files, **self._pipeline.for_reader, batch_size=self.batch_size, seed=seed,
            augment=augment, shuffle=self.shuffle, rank=self.rank, world=self.world, last=self._last,
            start=start, every=self._every, threads=self.threads, prefetch_bytes=self.prefetch_bytes,
            on_corrupt=self._on_corrupt, ids=self._ids, window=self._reading.window or 0,
            report=self._losses or self._reading.corrupt,
            stages=None if self.part is None or self.part.selection.mixture else self.part.selection.stages,
            mixture=None if self.part is None else self.part.selection.mixture,
            datasets=self._reading.datasets if self._ids else None,
            nodes=None if self.part is not None else self._reading.agreed,
            totals=(self._reading.num_records, self._reading.num_bytes), memory=resources.memory(),
            processors=resources.processors(), pulse=self._pulse,
        )  # fmt: skip
        expected = self._reading.num_records if self.part is None else self.division.records
        if (records := reader.num_records) != expected:
            reader.close()
            raise CorruptError(
                f"the files of this set have {records} records, expected {expected}: a file or its sidecar "
                "was replaced after the set was made, so ranks would take different numbers of steps"
            )
        return reader

    def _running(self) -> _core.BatchReader | None:
        """Returns the reader, unless a parent process made it, because its threads do not exist here."""
        return self._reader if os.getpid() == self._process else None

    def _delivering(self) -> Source | None:
        """Returns the source whose figures count the batches of the current pass."""
        return self._source if os.getpid() == self._process else None

    def _stop(self) -> None:
        """Ends the current pass. Keeps its figures, and keeps its files open for the next pass."""
        if self._reader is None:
            return
        position, figures = self.position, self.figures
        self._pipeline.close()
        self._idle = self._running()
        self._reader = self._source = None
        if self._idle is None or figures is None:
            return
        self._position = position
        self._ended = self._ended.plus(figures)
        self._corrupt += self._idle.corrupt
        self._idle.close()
        if self._losses is not None:
            self._losses.log_pass(each_once=not self.drop_last)
        self._reading.ended(self, figures)

    def _order(self) -> dict[str, Any]:
        """Returns the values that determine, with the seed, the batch at each position."""
        return {
            "fingerprint": self._reading.fingerprint,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "reshuffle": self.reshuffle,
            "window": self._reading.window,
            "drop_last": self.drop_last,
            "pad_last": self.pad_last,
            # In a division with a short batch, the last batches depend on the number of batches.
            "batches": None if self.drop_last or self.pad_last else len(self),
            "world": self.world,
            "part": None if self.part is None else self.part.fingerprint,
        }
