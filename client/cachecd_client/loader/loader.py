"""Batches of a file set, in a fixed order, made ahead of the training loop by native threads."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NoReturn, Self

import cachecd_client._core as _core
from cachecd_client import resources
from cachecd_client.errors import CallerError, CorruptError, CorruptRecordError
from cachecd_client.loader import state as passstate
from cachecd_client.loader.conversions import Cast, Decode, Default, OneHot, Pad, Rename, deliveries
from cachecd_client.loader.framework import Framework
from cachecd_client.loader.pipeline import Pipeline, Prepare, Source
from cachecd_client.loader.reading import CorruptRecord, Losses, Reading
from cachecd_client.options import flag, integer
from cachecd_client.schema import Schema

log = logging.getLogger("cachecd")

Batch = dict[str, Any]

_PREFETCH = 64 << 20
_PREFETCH_SHARE = 16  # of the memory that the ranks of a node and a run's loaders have together
_NONE: Mapping[str, Any] = MappingProxyType({})


#: Why a loader has no items: torch's DataLoader asks for them.
NO_ITEMS = (
    "a loader delivers whole batches in order, and none by number: iterate over the loader itself, without "
    "a DataLoader around it"
)


class Loader:
    """Iterates over batches, dicts of feature name -> column; one pass for each `for` loop.

    The records, their order and their grouping into batches depend on the files, the window in which
    they are shuffled, `seed`, the pass's number, `shuffle`, `batch_size`, `drop_last`, `pad_last`, `rank`
    and `world` alone, and in a run on what of the set is left to read. Every record's CRCs are checked.
    A dense feature is one array [rows, *shape] that belongs to the caller; others are columns
    (`Ragged`, `Bytes`). Every rank gets `len(loader)` batches, none of them empty, and no row is
    invented unless `pad_last` asks for it.

    batch_size: rows per batch of this rank; a last batch may have fewer, without `drop_last`.
    shuffle, seed: one permutation of the whole set, another for each pass number. `set_epoch(n)` numbers
        the next pass. Without it a single rank numbers its passes 0, 1, 2 ...; of several ranks none knows
        how many passes the others began, so every pass has the number and the order of the pass before.
    reshuffle: False: every pass has the order of pass 0.
    drop_last: leave out what does not fill a batch on every rank. False delivers each record once over
        all ranks: the last batch is short, and the ranks' rows in it differ by at most one. A rank that
        has no record left for it takes the last one of its batch before.
    pad_last: as drop_last=False, but every batch has `batch_size` rows: zeros or empty values fill up the
        last ones, and `_valid`, bool [batch_size], says which rows are records.
    threads: native reading threads; 0: up to four, of the processors that the cgroup leaves.
        prefetch_bytes: how far they run ahead; by default 64 MiB, or a batch of decoded pictures for each
        thread and two more if that is more, or 1/16 of the cgroup's memory if that is less.
    on_corrupt: "replace" a corrupt record by another of this rank, or "raise" CorruptRecordError.
    features: the ones to deliver, all by default. ids: add `_shard` and `_record`, int64, and where
        several datasets are mixed `_dataset`.
    cast: {feature: dtype}, the dtype of numbers in batches, by name or as a framework's object.
    pad: {feature: length} or {feature: (length, value)}: a ragged list of numbers becomes a dense
        row, longer ones cut off, shorter ones filled up with 0 or the value. `_FEATURE_length`,
        int64 [batch_size], is added: how many values of a row are the record's.
    one_hot: {feature: classes}, or True for as many as the schema names: a scalar integer becomes
        a row of float32, or what `cast` says. A record of another class is a SchemaError.
    default: {feature: value} for records without it, as if they held it: a number for the whole
        shape, an array of the shape, a list if ragged, bytes. Without, they are a SchemaError, or
        an empty list if ragged.
    rename: {stored name: name in batches}. `features` and the options above take the stored names; `label`,
        `channels_last` and `schema` have the names in batches.
    decode: {feature: Image}: a JPEG, a PNG or stored pixels become uint8 [rows, height, width, channels],
        cropped and flipped: see `cachecd_client.Image`. A damaged picture is a corrupt record.
    prepare: a function of a batch and a `numpy.random.Generator`. It gets a dict of NumPy columns as
        `numpy()` delivers them, and returns a dict of arrays and columns of as many rows, which it does not
        write to again. Two threads call it, up to three batches ahead of the loop, before the batch goes
        to the framework and the device. The generator follows from the seed, the pass and the place of the
        batch's first record. What the function raises is raised when the batch's turn comes. `schema` has
        the columns before it; `channels_last` and `label` name columns after it; uint16 of the name of a
        bfloat16 feature is bfloat16.
    label: the feature that comes apart from the others: batches are tuples (dict, label), or with
        `pad_last` (dict, label, `_valid`). It need not be among `features`.
    rank, world: among the data-parallel replicas that share the set: the processes of one replica, as under
        tensor parallelism, have one rank. By default those given to `epochs()`, or else the ranks on this
        node, as its launcher says (`cachecd_client.launcher`): right for files of this node alone.
    every: of the batches from `position` on, only each so-many-th: for readers that take turns. `len`
        and `position` count those of the others too.

    CallerError, SchemaError among them, when it is made with what cannot be.

    Use it from one thread at a time, in the process that began the pass.
    """

    def __init__(
        self,
        reading: Reading,
        batch_size: int,
        framework: Framework,
        *,
        shuffle: bool | None = None,
        seed: int | None = None,
        reshuffle: bool = True,
        drop_last: bool | None = None,
        pad_last: bool | None = None,
        threads: int = 0,
        prefetch_bytes: int | None = None,
        on_corrupt: Literal["replace", "raise"] = "replace",
        features: Sequence[str] | None = None,
        cast: Cast = _NONE,
        pad: Pad = _NONE,
        one_hot: OneHot = _NONE,
        default: Default = _NONE,
        decode: Decode = _NONE,
        rename: Rename = _NONE,
        prepare: Prepare | None = None,
        label: str | None = None,
        ids: bool = False,
        rank: int | None = None,
        world: int | None = None,
        every: int = 1,
    ) -> None:
        if on_corrupt not in ("replace", "raise"):
            raise CallerError(f"on_corrupt={on_corrupt!r}, expected 'replace' or 'raise'")
        self._reading = reading
        schema = reading.schema if features is None else reading.schema.select(features)
        made = deliveries(
            schema, cast=cast, pad=pad, one_hot=one_hot, default=default, decode=decode, rename=rename,
        )  # fmt: skip
        self.batch_size = integer("batch_size", batch_size, 1)
        self.shuffle, self.seed, last = reading.settle(shuffle, seed, drop_last, pad_last)
        self.reshuffle = flag("reshuffle", reshuffle)
        self._last = last
        self.drop_last, self.pad_last = last == "drop", last == "pad"
        self.rank, self.world = reading.place(rank, world)
        #: What is read, if that is not one pass of the set; and how it is divided.
        self.part, self.division = reading.divided(self.batch_size, self.world, last, self.seed)
        self._batches = self.division.steps
        self._every = integer("every", every, 1)
        self.threads = integer("threads", threads, 0)
        shapes = [(self.batch_size, *image.shape) for image in decode.values()]
        #: Of the decoded pictures of one batch; 0 for pictures of unknown shape.
        self.picture_bytes = sum(math.prod(shape) for shape in shapes if -1 not in shape)
        if prefetch_bytes is None:
            # One decoded batch for each thread (four by default), and two that wait for the loop.
            prefetch_bytes = max(_PREFETCH, ((self.threads or 4) + 2) * self.picture_bytes)
            prefetch_bytes = min(prefetch_bytes, resources.memory() // _PREFETCH_SHARE)
        self.prefetch_bytes = integer("prefetch_bytes", prefetch_bytes, 0)
        self._on_corrupt: Literal["replace", "raise"] = on_corrupt
        self._ids = flag("ids", ids)
        self._pipeline = Pipeline(
            reading, made, framework, self.division, rank=self.rank, world=self.world, ids=self._ids,
            pad_last=self.pad_last, label=label, prepare=prepare,
        )  # fmt: skip
        self._number = 0  # of the pass that runs, or ran last
        self._position = 0  # batches of the pass delivered, those before a resume included
        self._next: tuple[int, int] | None = (0, 0)  # the next pass's number, and where it begins
        #: The batch at which the pass that runs, or ran last, began.
        self.start = 0
        self._reader: _core.BatchReader | None = None  # of the pass that runs
        self._source: Source | None = None  # of its batches: the reader, or what is ahead of it
        self._pass = 0  # how many there were, to tell one from another
        self._idle: _core.BatchReader | None = None  # of one that has ended: its files are open
        self._losses = Losses(reading.corrupt) if on_corrupt == "replace" else None
        self._process = 0  # that made the reader
        self._closed = False
        self._has_warned = False
        self._waited = 0.0  # of passes that have ended, as are the next three
        self._read = 0
        self._filled = 0.0
        self._idled = 0.0  # at the end of the last pass
        self._corrupt: list[CorruptRecord] = []

    def __len__(self) -> int:
        """Batches of a whole pass, the same on every rank: those of `steps_per_epoch`, if there is one."""
        return self._batches

    def __iter__(self) -> Iterator[Batch]:
        """The next pass from its start, or the rest of the one that `load_state_dict` gave.

        A loader has one pass at a time: a new one ends the one before.
        """
        batches = self._begin()
        this = self._pass
        try:
            # Each line of Python for a batch would cost the trainer microseconds, as its own step has
            # taken the processor's caches.
            yield from self._pipeline.deliver(batches)
        except CorruptRecordError as error:
            self._reading.corrupt([(error.path, error.offset, error.why)])
            raise
        except RuntimeError as error:
            if os.getpid() != self._process:
                raise CallerError(
                    "this pass was begun before the fork, and its reading threads are not in this "
                    "process: iterate anew here"
                ) from error
            if self._source is batches and self._pass == this:
                raise
            raise CallerError(
                "this pass has ended: the loader was closed, its lease released, or another pass "
                "begun; make a second loader to read twice at once"
            ) from error
        finally:
            if self._pass == this:
                self._stop()

    @property
    def schema(self) -> Schema:
        """The features as batches hold them: their dtypes and shapes after all options.

        `kind` and `raw` stay those of the records; what the loader adds is not in it.
        """
        return self._pipeline.schema

    @property
    def position(self) -> int:
        """Batches of the current pass that have been delivered; the last pass's when none runs."""
        return self._position if (pass_ := self._delivering()) is None else pass_.position

    @property
    def seconds_waited(self) -> float:
        """Seconds the training loop stood still because no batch was ready, over all passes."""
        return self._waited + (pass_.seconds_waited if (pass_ := self._delivering()) else 0.0)

    @property
    def bytes_read(self) -> int:
        """Record bytes delivered, over all passes."""
        return self._read + (pass_.bytes_read if (pass_ := self._delivering()) else 0)

    @property
    def queue_filled(self) -> float:
        """How full the queue of batches made ahead was after each batch delivered, over all passes.

        A sum of figures of 0..1, of `prefetch_bytes`, where 1 also says that there was nothing left to
        make: over the batches delivered it is the mean. Threads begin anew at a half, so a loop that
        never waits has 0.5 to 1.
        """
        return self._filled + (pass_.queue_filled if (pass_ := self._delivering()) else 0.0)

    @property
    def seconds_idle(self) -> float:
        """Seconds since the loop was given a batch, or told that there is none, till now or till the end of
        the pass that ran last."""
        return self._idled if (pass_ := self._delivering()) is None else pass_.seconds_idle

    @property
    def corrupt(self) -> list[CorruptRecord]:
        """(path, offset, why) of every corrupt record met, over all passes."""
        reader = self._running()
        return self._corrupt + (reader.corrupt if reader else [])

    def set_epoch(self, epoch: int) -> None:
        """Gives the next pass this number, by which it is shuffled.

        With several ranks, call it on all of them before each pass, as `set_epoch` of torch's
        DistributedSampler. A pass that runs goes on. If `load_state_dict` gave a pass of this number, the
        next pass still continues it; a state of another pass is dropped.
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
                "pass %d of rank %d of %d begins again in the same order: call set_epoch(n) before each "
                "pass, on all ranks, for another order",
                number, self.rank, self.world,
            )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Where this loader stands: plain values, the same on every rank at the same step.

        Of a lease, also what `Cache.epochs(state=)` needs to go on with it in another process; `json` and
        `torch.save` take it.
        """
        return {**self.pass_state(), **self._reading.about(self)}

    def pass_state(self) -> dict[str, Any]:
        """Of `state_dict` what concerns the pass alone: nobody is asked for it."""
        return passstate.write(self._number, self.position, self.seed, self._order())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next pass continue after the batch that `state` had delivered last.

        CallerError if the state belongs to another file set or to another division into batches
        and ranks, or is no state: there is no such position here.
        """
        number, position, seed = passstate.read(state, self._order(), self._batches)
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
            "a loader has threads, which cannot be pickled: pickle the FileSet or the Epoch, and make "
            "the loader in the process that reads"
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
        number, start = self.next_pass
        if self._next is None and self.world > 1 and not self._has_warned:
            self._has_warned = True
            self.warn_of_same_order(number)
        # Each pass has other crops, even if the order of records stays the same.
        augment = passstate.seed_of(self.seed, number)
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
        self._reading.began(self)
        return self._source

    def _new_reader(self, start: int, seed: int, augment: int) -> _core.BatchReader:
        reader = _core.BatchReader(
            self._reading.files,
            **self._pipeline.for_reader,
            batch_size=self.batch_size,
            seed=seed,
            augment=augment,
            shuffle=self.shuffle,
            rank=self.rank,
            world=self.world,
            last=self._last,
            start=start,
            every=self._every,
            threads=self.threads,
            prefetch_bytes=self.prefetch_bytes,
            on_corrupt=self._on_corrupt,
            ids=self._ids,
            window=self._reading.window or 0,
            report=self._losses or self._reading.corrupt,
            stages=None
            if self.part is None or self.part.selection.mixture
            else self.part.selection.stages,
            mixture=None if self.part is None else self.part.selection.mixture,
            datasets=self._reading.datasets if self._ids else None,
            nodes=None if self.part is not None else self._reading.agreed,
            totals=(self._reading.num_records, self._reading.num_bytes),
            memory=resources.memory(),
            processors=resources.processors(),
        )
        expected = self._reading.num_records if self.part is None else self.division.records
        if (records := reader.num_records) != expected:
            reader.close()
            raise CorruptError(
                f"the files of this set have {records} records, expected {expected}: a file or its sidecar "
                "is another one than when the set was made, and ranks would take different numbers of steps"
            )
        return reader

    def _running(self) -> _core.BatchReader | None:
        """The reader, unless it was made before a fork: its threads are not in this process."""
        return self._reader if os.getpid() == self._process else None

    def _delivering(self) -> Source | None:
        """Who counts what the loop is given of the pass that runs."""
        return self._source if os.getpid() == self._process else None

    def _stop(self) -> None:
        """Ends the pass, if one runs, keeping its figures, and what it has open for the next."""
        if self._reader is None:
            return
        delivered = self._delivering()
        self._pipeline.close()
        self._idle = self._running()
        self._reader = self._source = None
        if self._idle is None or delivered is None:
            return
        self._position = delivered.position
        self._idled = delivered.seconds_idle
        self._waited += delivered.seconds_waited
        self._read += delivered.bytes_read
        self._filled += delivered.queue_filled
        self._corrupt += self._idle.corrupt
        self._idle.close()
        if self._losses is not None:
            self._losses.tell(each_once=not self.drop_last)
        self._reading.ended(self)

    def _order(self) -> dict[str, Any]:
        """What the meaning of a position depends on, besides the seed."""
        return {
            "fingerprint": self._reading.fingerprint,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "reshuffle": self.reshuffle,
            "window": self._reading.window,
            "drop_last": self.drop_last,
            "pad_last": self.pad_last,
            # In a short division the last batches depend on how many there are.
            "batches": None if self.drop_last or self.pad_last else self._batches,
            "world": self.world,
            "part": None if self.part is None else self.part.fingerprint,
        }
