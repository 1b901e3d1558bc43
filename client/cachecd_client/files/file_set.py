"""A set of TFRecord files, read in the trainer's framework; no daemon needed."""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

from cachecd_client import resources
from cachecd_client.errors import CallerError
from cachecd_client.files.inference import schema_of
from cachecd_client.files.locate import Located, locate
from cachecd_client.frameworks.collective import gathering
from cachecd_client.launcher import local_ranks
from cachecd_client.loader.framework import Framework, Numpy
from cachecd_client.loader.loader import Batch, Loader
from cachecd_client.loader.options import Options, with_label
from cachecd_client.loader.reading import Reading, place
from cachecd_client.options import flag, integer
from cachecd_client.report.telemetry import Lent
from cachecd_client.schema import Schema

if TYPE_CHECKING:
    import tensorflow
    from torch.utils.data import IterableDataset


log = logging.getLogger("cachecd")

Path = str | os.PathLike[str]


class FileSet:
    """TFRecord files of `tf.train.Example` records, in the order given.

    Any plain TFRecord files will do. Where a file has a sidecar (`FILE.idx`), its records are found there;
    otherwise each set walks through it once, many files at a time. `python -m cachecd_client.index`
    writes sidecars, and inflates compressed files, which cannot be read at random. Nothing is read
    before it is asked for, and the files and their folder are never written to.
    """

    def __init__(
        self,
        paths: Path | Iterable[Path],
        *,
        schema: Schema | None = None,
        window: int | Literal["auto"] | None = "auto",
    ) -> None:
        """One path or several; a file that is named twice is read twice. Patterns: use `glob`.

        schema: overrides what the sidecars say or some records suggest.
        window: bytes of files that are read at random from at a time. A set that fits is shuffled
            exactly; a larger one within a sliding window of whole files, read ahead in one sweep
            each. "auto": as a lease's, half of the memory that this process's cgroup allows, and of
            no more than 16,384 files. None or 0: the whole set, whatever its size.

        CallerError if there are no paths, one names no file, or an option cannot be.
        """
        if isinstance(paths, (str, os.PathLike)):
            paths = [paths]
        self._files: Sequence[str] = [os.fsdecode(path) for path in paths]
        if not self._files:
            raise CallerError("a FileSet of no files: check what should have found some")
        if schema is not None and not isinstance(schema, Schema):
            raise CallerError(
                f"schema={reprlib.repr(schema)}, expected a Schema; Schema.from_json makes one of JSON"
            )
        if absent := [path for path in self._files if not os.path.isfile(path)]:
            raise CallerError(
                f"{len(absent)} of {len(self._files)} files do not exist, the first is "
                f"{absent[0]}{_hint(absent[0])}"
            )
        self._schema = schema
        self._asked: int | str | None = window
        if window is not None and window != "auto":
            self._asked = integer("window", window, 0) or None

    @property
    def files(self) -> list[str]:
        """The files' paths, for any TFRecord reader."""
        return list(self._files)

    @cached_property
    def schema(self) -> Schema:
        """The features of every record.

        From the sidecars, else inferred from some records of several files: a list whose length
        differs, or that is sometimes missing, is ragged. SchemaError if these cannot be one
        dataset's, or are no Examples.
        """
        return schema_of(self._located) if self._schema is None else self._schema

    @cached_property
    def num_records(self) -> int:
        """Records in all files, over all ranks."""
        return sum(file.num_records for file in self._located)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of all files, without sidecars."""
        return sum(file.num_bytes for file in self._located)

    @cached_property
    def window(self) -> int | None:
        """The shuffle window in bytes; None: the whole set."""
        if self._asked is None or isinstance(self._asked, int):
            return self._asked
        return resources.window_of(self.num_bytes, len(self._files))

    @cached_property
    def fingerprint(self) -> str:
        """Names the set: by file names and lengths, in their order, whatever the folder."""
        digest = hashlib.sha256()
        for path in self._files:
            name = os.fsencode(os.path.basename(path))  # any bytes but a zero may be in it
            digest.update(b"%b\0%d\0" % (name, os.path.getsize(path)))
        return digest.hexdigest()[:32]

    def numpy(self, batch_size: int, **options: Unpack[Options]) -> Loader:
        """Batches of NumPy arrays; bfloat16 comes as uint16. Options: see `Loader`."""
        return self._loader(batch_size, Numpy(), options)

    def torch(
        self,
        batch_size: int,
        *,
        device: Any = None,
        channels_last: bool | Sequence[str] = False,
        **options: Unpack[Options],
    ) -> Loader:
        """Batches of torch tensors over the arrays' own memory, or copied to `device`.

        To a CUDA device the next batch is copied while the one before is used: from pinned memory,
        over a stream of its own, behind which the stream that is current in `next()` waits. Batches
        may be kept; beside those, three are on the device at most, however far the loop is ahead of
        it. CallerError for a device that there is not.
        channels_last: features [H, W, C], or True for all that have three axes: they come as views
        [rows, C, H, W], contiguous in torch.channels_last, as convolutions like them best.
        Columns whose rows differ in length stay columns; `column.to_torch(device)` makes jagged
        tensors of them. Options: see `Loader`.
        """
        return self._torch(batch_size, device, channels_last, options)

    def to_dataset(
        self,
        batch_size: int,
        *,
        channels_last: bool | Sequence[str] = False,
        **options: Unpack[Options],
    ) -> IterableDataset[Batch]:
        """The batches of `torch()` as a dataset, for who has to use torch's DataLoader.

        `DataLoader(dataset, batch_size=None, num_workers=N)` delivers the very batches of `torch()`,
        in their order, whatever N: its workers, forked or spawned, make them in turn. It has
        `len()`, and the state that torchdata's StatefulDataLoader asks for. `torch()` is faster: what
        workers make is copied from process to process. Columns whose rows differ in length come as they
        are.
        """
        from cachecd_client.frameworks.torch_dataset import BatchDataset

        if "rank" not in options and "world" not in options:
            # As this process has it: a worker has no process group.
            self._look_for_other_nodes()
            options["rank"], options["world"] = self._share or place(None, None)
        make = partial(self._torch, batch_size, None, channels_last, options)
        with self._resuming() as begin:
            dataset = BatchDataset(make, begin)
        loader = dataset.loader
        to = "a dataset's workers"
        self.lend(Lent(to, len(loader), loader.batch_size, loader.world), loader)
        return dataset

    def tf(self, batch_size: int, **options: Unpack[Options]) -> Loader:
        """Batches of TensorFlow tensors over the arrays' own memory, in the order of `Loader`.

        Dense features are tensors [rows, *shape], ragged ones tf.RaggedTensors, bytes string tensors,
        of which alone the content is copied: `features` without them is faster. With `label`, batches
        are tuples as Keras takes them, whose `weighted_metrics` leave `pad_last`'s padding out.
        `model.train_on_batch(*batch)` uses them as they are; `model.fit(iter(loader),
        steps_per_epoch=len(loader), shuffle=False)` copies, and is for one epoch: several take a
        generator that iterates anew. Options: see `Loader`.
        """
        from cachecd_client.frameworks.tensorflow import TensorFlow

        return self._loader(batch_size, TensorFlow(), options)

    def jax(self, batch_size: int, *, device: Any = None, **options: Unpack[Options]) -> Loader:
        """Batches of jax.Arrays, on a CPU over the arrays' own memory, else copied to `device`.

        `device`: as in jax.device_put, a sharding too; JAX's default device if None; CallerError for
        one that cannot take a feature's [batch_size, *shape]. Over devices of several processes, each
        gives its own `batch_size` rows, and arrays have those of all. JAX narrows 64-bit numbers to 32
        bits unless `jax_enable_x64` is on; SchemaError for an integer that does not fit. Columns whose
        rows differ in length stay columns, and so do bytes; `column.to_jax()` makes arrays of them.
        Options: see `Loader`.
        """
        from cachecd_client.frameworks.jax import Jax

        rank, world = options.get("rank"), options.get("world")
        given = self._replica if rank is None or world is None else (rank, world)
        return self._loader(batch_size, Jax(device, batch_size, given), options)

    def tf_dataset(
        self,
        batch_size: int,
        *,
        label: str | None = None,
        shuffle: bool | None = None,
        seed: int | None = None,
        reshuffle: bool = True,
        drop_last: bool | None = None,
        pad_last: bool | None = None,
        features: Sequence[str] | None = None,
        rank: int | None = None,
        world: int | None = None,
    ) -> tensorflow.data.Dataset:
        """A stock tf.data pipeline: TensorFlow reads the files and parses them by their schema.

        Elements are dicts of feature name -> tensor [rows, *shape] (tf.RaggedTensor for ragged
        features), or (dict, label) tuples if `label` names one. Each iteration has another order,
        unless reshuffle=False, which follows from `seed` (and tf.random.set_seed). It is shuffled by file
        and within a buffer, not over the whole set as `Loader` does, and every rank reads all files to
        keep its share of the records. `drop_last` and `pad_last` are those of `Loader`: a short last batch,
        or full ones and `_valid`, which is the third of a tuple with `label`. Of an epoch with
        `steps_per_epoch`, or at the end of a run of `records`, it has as many batches as a loader, of
        any records: it repeats a small set in another order, and of a large one leaves out the rest.
        """
        from cachecd_client.frameworks import tf_pipeline

        if rank is None and world is None:
            self._look_for_other_nodes()
        reading = self._reading(self.schema)
        reading.begin()
        shuffle, seed, last = reading.settle(shuffle, seed, drop_last, pad_last)
        made, lent = tf_pipeline.dataset(
            reading,
            batch_size,
            num_bytes=self.num_bytes,
            label=label,
            shuffle=shuffle,
            seed=seed,
            reshuffle=flag("reshuffle", reshuffle),
            last=last,
            features=features,
            rank=rank,
            world=world,
            begin=self.begin_anew,  # TensorFlow would tell nobody where it is
        )
        self.lend(lent)
        return made

    def __repr__(self) -> str:
        """The files, and the records if they were counted before."""
        known = self.__dict__.get("num_records")
        records = "" if known is None else f", {known} records"
        first = reprlib.repr(self._files[0])
        return f"<{type(self).__name__} of {len(self._files)} files{records}, the first is {first}>"

    @cached_property
    def _located(self) -> Sequence[Located]:
        """The files and where their records are."""
        return locate(self._files)

    def _stores(self, name: str) -> bool:
        """Whether records have a feature of this name."""
        return name in self.schema.names

    def _schema_for(self, options: Options) -> Schema:
        """Of the records, for a loader of these options, which may select of it."""
        return self.schema

    def _reading(self, schema: Schema) -> Reading:
        """What a loader needs to know of this set."""
        return Reading(
            files=[(os.path.abspath(file.path), file.offsets) for file in self._located],
            schema=schema,
            num_records=self.num_records,
            num_bytes=self.num_bytes,
            fingerprint=self.fingerprint,
            window=self.window,
            share=self._share,
        )

    def begin_anew(self) -> None:
        """What reads it begins with the first batch, wherever an earlier process was."""

    @contextmanager
    def _resuming(self) -> Iterator[dict[str, Any] | None]:
        """The state at which the first loader's first pass begins, for whoever asks first and does not
        fail."""
        yield None

    def _look_for_other_nodes(self) -> None:
        """Warns where ranks are counted on this node, and others may read the same files."""
        rank, world = local_ranks()
        if gathering(world) is not None:
            _warn_of_other_nodes(rank, world)

    #: As `epochs()` was given them: the replica of the model that this process holds, (number, count), and
    #: its (rank, world) in the set.
    _replica: tuple[int, int] | None = None
    _share: tuple[int, int] | None = None

    def lend(self, lent: Lent, loader: Loader | None = None) -> None:
        """Notes what others are given to read, of which no loader here will know; this one does, if it
        begins itself."""

    def _torch(
        self,
        batch_size: int,
        device: Any,
        channels_last: bool | Sequence[str],
        options: Options,
        every: int = 1,
        threads: int = 0,
    ) -> Loader:
        from cachecd_client.frameworks.torch import Torch

        framework = Torch(device, channels_last)
        return self._loader(batch_size, framework, {"threads": threads, **options}, every)

    def _loader(
        self, batch_size: int, framework: Framework, options: Options, every: int = 1
    ) -> Loader:
        if unknown := options.keys() - Options.__optional_keys__:
            raise TypeError(
                f"unknown option {sorted(unknown)[0]!r}; a loader takes batch_size, "
                f"{', '.join(Options.__annotations__)}"
            )
        options = with_label(options, self._stores)
        if options.get("rank") is None and options.get("world") is None:
            self._look_for_other_nodes()
        reading = self._reading(self._schema_for(options))
        return Loader(reading, batch_size, framework, every=every, **options)


@cache
def _warn_of_other_nodes(rank: int, world: int) -> None:
    log.warning(
        "a FileSet is divided among the ranks of this node (this is rank %d of %d), and the run has more "
        "processes: each node reads all of its files. If all nodes see the same files, give loaders the "
        "rank= and world= of the whole run; if each node has files of its own, rank=%d, world=%d say so",
        rank, world, rank, world,
    )  # fmt: skip


def _hint(path: str) -> str:
    """What may help when there is no such file."""
    if os.path.isdir(path):
        return ", a directory: give the files in it"
    if os.path.exists(path):
        return ", which is something else: it takes regular files"
    if "://" in path:
        return ": a FileSet reads local files; `cachecd` brings those of a store"
    if glob.has_magic(path):
        return f": patterns are not expanded, give sorted(glob.glob({path!r}))"
    return ""
