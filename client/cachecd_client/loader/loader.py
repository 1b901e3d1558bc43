"""Batches of a file set, in a fixed order, made ahead of the training loop by native threads."""

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
from cachecd_client.loader.framework import Framework
from cachecd_client.loader.options import Batch, Options, deliveries, refuse_unknown
from cachecd_client.loader.pipeline import Pipeline, Source
from cachecd_client.loader.reading import (
    LARGEST_SEED,
    CorruptRecord,
    Figures,
    Losses,
    Reading,
    left_out,
    seed_of,
    settle,
)
from cachecd_client.options import flag, integer
from cachecd_client.schema import Schema

log = logging.getLogger("cachecd")

_VERSION = 1  # of a state
_PREFETCH = 64 << 20
_PREFETCH_SHARE = 16  # of the memory that the ranks of a node and a run's loaders have together


#: Why a loader has no items: torch's DataLoader asks for them.
NO_ITEMS = (
    "a loader delivers whole batches in order, and none by number: iterate over the loader itself, without "
    "a DataLoader around it"
)


class Loader:
    """Iterates over batches, dicts of feature name -> column; each `for` loop is one pass.

    The records, their order and their batches depend only on the files, the shuffle window, `seed`, the
    number of the pass, `shuffle`, `batch_size`, `drop_last`, `pad_last`, `rank` and `world`, and in a run
    on the records that are left to read. The CRCs of every record are checked. A dense feature is one array
    [rows, *shape] that belongs to the caller; other features are columns (`Ragged`, `Bytes`). Every rank
    gets `len(loader)` batches, none of them empty. No row is invented unless `pad_last` asks for it.

    batch_size: rows per batch of this rank; a last batch may have fewer, without `drop_last`.
    shuffle, seed: one permutation of the whole set, another one for each pass number. `set_epoch(n)`
        numbers the next pass. Without it a single rank numbers its passes 0, 1, 2 ...; one of several ranks
        does not know how many passes the others began, so each pass repeats the number and the order.
    reshuffle: False: every pass has the order of pass 0.
    drop_last: leave out the records that do not fill a batch on every rank. False delivers each record
        once over all ranks: the last batch is short, and differs by at most one row between ranks. A rank
        without a record for it repeats the last record of its batch before.
    pad_last: as drop_last=False, but every batch has `batch_size` rows: zeros or empty values fill up the
        last batches, and `_valid`, bool [batch_size], says which rows are records.
    threads: native reading threads; 0: up to four, limited by the processors of the cgroup.
        prefetch_bytes: how far the threads run ahead. By default the larger of 64 MiB and one batch of
        decoded pictures for each thread and two more, but at most 1/16 of the memory of the cgroup.
    on_corrupt: "replace" a corrupt record by another record of this rank, or "raise" CorruptRecordError.
    features: the features to deliver, all by default. ids: add `_shard` and `_record`, int64, and in a
        mixture `_dataset`.
    cast: {feature: dtype}, the dtype of numbers in batches, by name or as a framework's object. As NumPy's
        astype; where that is undefined, the nearest limit of the integer, and 0 for NaN.
    pad: {feature: length} or {feature: (length, value)}: a ragged list of numbers becomes a dense row. A
        longer list is cut off, a shorter list is filled up with 0 or the value. `_FEATURE_length`, int64
        [batch_size], is added: the number of values that the record has, at most `length`.
    one_hot: {feature: classes}, or True for the classes in the schema: a scalar integer becomes a row of
        float32, or of the dtype in `cast`. A record of another class is a SchemaError.
    default: {feature: value} for records without the feature: a number for the whole shape, an array of
        the shape, a list if the feature is ragged, or bytes. Without a default such a record is a
        SchemaError, or has an empty list if the feature is ragged.
    rename: {stored name: name in batches}. `features` and the options above take stored names; `label`,
        `channels_last` and `schema` have the names in batches.
    decode: {feature: Image}: a JPEG, a PNG or stored pixels become uint8 [rows, height, width, channels],
        cropped and flipped: see `cachecd_client.Image`. A damaged picture is a corrupt record.
    prepare: a function of a batch and a `numpy.random.Generator`. It gets a dict of NumPy columns as
        `numpy()` delivers them, and returns a dict of arrays and columns with the same number of rows, to
        which it does not write again. Two threads call it, up to three batches ahead of the loop, before
        the batch goes to the framework and the device. The generator follows from the seed, the pass and
        the place of the first record of the batch. An exception of the function is raised when the loop
        takes that batch. `schema` has the columns before `prepare`; `channels_last` and `label` name
        columns after it. A uint16 column with the name of a bfloat16 feature is bfloat16.
    label: the feature that is delivered apart from the others: batches are tuples (dict, label), or with
        `pad_last` (dict, label, `_valid`). It need not be among `features`.
    rank, world: the place among the data-parallel replicas that share the set. All processes of one
        replica (tensor parallelism) have one rank. Default: the values given to `epochs()`, else the ranks
        on this node by its launcher (`cachecd_client.launcher`), which is right for files of one node.
    CallerError, SchemaError among them, if an option or a combination of options is impossible.

    Use it from one thread at a time, in the process that began the pass.
    """

    def __init__(
        self, reading: Reading, batch_size: int, framework: Framework, every: int = 1, /,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        """`every`: deliver only each n-th batch from `position` on, for readers that take turns. `len()`
        and `position` count the batches of the others, too."""
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
        #: Records, over all ranks, that `drop_last` leaves out of a whole pass.
        self.dropped = left_out(self.division, self.batch_size * self.world, reading.agreed)
        self._every = integer("every", every, 1)
        self.threads = integer("threads", options.get("threads", 0), 0)
        shapes = [(self.batch_size, *image.shape) for image in options.get("decode", {}).values()]
        #: Bytes of the decoded pictures of one batch; 0 for pictures of unknown shape.
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
        self._number = 0  # of the current pass, or the last one
        self._position = 0  # delivered batches of the pass, with those before a resume
        self._next: tuple[int, int] | None = (0, 0)  # number and first batch of the next pass
        #: The batch at which the current pass, or the last one, began.
        self.start = 0
        self._reader: _core.BatchReader | None = None  # of the current pass
        self._source: Source | None = (
            None  # of its batches: the reader, or the last stage behind it
        )
        self._pass = 0  # counts passes, to distinguish them
        self._idle: _core.BatchReader | None = None  # of the last pass, with open files
        self._losses = Losses(reading.corrupt) if on_corrupt == "replace" else None
        self._process = 0  # that made the reader
        self._closed = False
        self._has_warned = False
        self._begun = 0.0  # the time at which the pass began
        self._opening = 0.0  # seconds in which its files were opened
        self._ended = Figures()  # of passes that have ended
        self._corrupt: list[CorruptRecord] = []

    def __len__(self) -> int:
        """Batches of a whole pass, the same on every rank: `steps_per_epoch` if the run has it."""
        return self.division.steps

    def __iter__(self) -> Iterator[Batch]:
        """The next pass from its start, or the rest of the pass that `load_state_dict` set.

        A loader has one pass at a time: a new pass ends the pass before.
        """
        batches = self._begin()
        this = self._pass
        try:
            # Each line of Python for a batch costs the trainer microseconds: its step has evicted our code
            # from the processor's caches.
            yield from self._pipeline.deliver(batches)
        except CorruptRecordError as error:
            self._reading.corrupt([(error.path, error.offset, error.why)])
            raise
        except RuntimeError as error:
            if os.getpid() != self._process:
                raise CallerError(
                    "this pass began before the fork, and its reading threads do not exist in this "
                    "process: iterate anew here"
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

        `kind` and `raw` are those of the stored records. Features that the loader adds are left out.
        """
        return self._pipeline.schema

    @property
    def position(self) -> int:
        """Batches that the current pass has delivered, or the last pass if none runs."""
        return self._position if (pass_ := self._delivering()) is None else pass_.position

    @property
    def seconds_waited(self) -> float:
        """Seconds that the training loop waited because no batch was ready, or because the files of a pass
        were opened, over all passes."""
        return self._sums().waited

    @property
    def bytes_read(self) -> int:
        """Record bytes delivered, over all passes."""
        return self._sums().bytes

    @property
    def queue_filled(self) -> float:
        """How full the queue of prefetched batches was after each delivered batch, as a sum.

        Each term is 0..1 of `prefetch_bytes`; it is 1 if nothing is left to prefetch. Divide the sum by the
        number of batches. Threads begin again at half, so a loop that never waits has 0.5 to 1.
        """
        return self._sums().queue

    @property
    def figures(self) -> Figures | None:
        """The figures of the current pass; None if no pass runs in this process."""
        if (source := self._delivering()) is None:
            return None
        begin, end, step = self.start, source.position, self.batch_size * self.world
        division, is_whole = self.division, source.position == len(self)
        reads = min(end * step, division.records) - min(begin * step, division.records)
        left = left_out(division, step) if is_whole else 0
        # A loop that knows len(loader) does not take one more batch, and the pass does not end.
        idle = source.seconds_idle if is_whole else 0.0
        return Figures(
            steps=end - begin,
            records=division.begin(end, self.rank) - division.begin(begin, self.rank),
            reads=reads,
            rows=(end - begin) * step,
            delivered=reads + (left if left < step else 0),
            dropped=self.dropped if is_whole else 0,
            bytes=source.bytes_read,
            waited=self._opening + source.seconds_waited,
            elapsed=time.monotonic() - idle - self._begun,
            queue=source.queue_filled,
        )

    def _sums(self) -> Figures:
        return self._ended.plus(self.figures or Figures())

    @property
    def corrupt(self) -> list[CorruptRecord]:
        """(path, offset, why) of every corrupt record found, over all passes."""
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
        """Logs that pass `number` has the order of the pass before, if a pass number changes the order."""
        if self.shuffle and self.reshuffle:
            log.warning(
                "pass %d of rank %d of %d repeats the order of the pass before: call set_epoch(n) before "
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
        """The part of `state_dict` that concerns the pass alone."""
        begun = {"version": _VERSION, "pass": self._number, "position": self.position}
        return {**begun, "seed": self.seed, **self._order()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next pass continue after the last batch that was delivered before `state` was taken.

        CallerError if it is no state, or if it belongs to another file set or to another division into
        batches and ranks: this loader has no such position.
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
                "same file set and options, or begin the pass anew"
            )
        seed = integer("the state's seed", state.get("seed"), 0, LARGEST_SEED)
        position = integer("the state's position", state.get("position"), 0, len(self))
        number = integer("the state's pass", state.get("pass"), 0)
        self._stop()
        self.seed = seed
        self._next = self._number, self._position = number, position

    def close(self) -> None:
        """Ends the pass and its reading threads, for good. Idempotent; batches stay valid."""
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
            raise CallerError("this loader is closed: make another one")
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
            self._idle.restart(start, seed, augment)  # with the files that it has open
            self._reader = self._idle
        else:
            self._reader = self._new_reader(start, seed, augment)
            self._process = os.getpid()
        self._idle = None
        # Not before: a start that failed is tried again where it was.
        self._number, self._position, self._next = number, start, None
        self.start = start
        self._pass += 1
        self._source = self._pipeline.open(self._reader, augment)
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
            processors=resources.processors(),
        )  # fmt: skip
        expected = self._reading.num_records if self.part is None else self.division.records
        if (records := reader.num_records) != expected:
            reader.close()
            raise CorruptError(
                f"the files of this set have {records} records, expected {expected}: a file or its sidecar "
                "was replaced since the set was made, and ranks would take different numbers of steps"
            )
        return reader

    def _running(self) -> _core.BatchReader | None:
        """The reader, unless a parent process made it: its threads do not exist here."""
        return self._reader if os.getpid() == self._process else None

    def _delivering(self) -> Source | None:
        """The source whose figures count the batches of the current pass."""
        return self._source if os.getpid() == self._process else None

    def _stop(self) -> None:
        """Ends the current pass. Keeps its figures, and its open files for the next pass."""
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
        """The values that decide, with the seed, which batch a position means."""
        return {
            "fingerprint": self._reading.fingerprint,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "reshuffle": self.reshuffle,
            "window": self._reading.window,
            "drop_last": self.drop_last,
            "pad_last": self.pad_last,
            # In a short division the last batches depend on how many there are.
            "batches": None if self.drop_last or self.pad_last else len(self),
            "world": self.world,
            "part": None if self.part is None else self.part.fingerprint,
        }
