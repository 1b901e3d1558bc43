"""A set of TFRecord files that a trainer reads without a daemon."""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import reprlib
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Unpack

from cachecd_client import resources
from cachecd_client.errors import CallerError
from cachecd_client.files.locate import Located, locate, schema_of
from cachecd_client.frameworks.collective import gathering
from cachecd_client.launcher import local_ranks
from cachecd_client.loader.framework import Framework, Numpy
from cachecd_client.loader.loader import Loader
from cachecd_client.loader.options import Batch, Options, TfOptions, with_label
from cachecd_client.loader.reading import Lent, Reading, place
from cachecd_client.options import flag, integer
from cachecd_client.schema import Schema

if TYPE_CHECKING:
    import tensorflow
    from torch.utils.data import IterableDataset


log = logging.getLogger("cachecd")

Path = str | os.PathLike[str]


class FileSet:
    """TFRecord files of `tf.train.Example` records, in the order given.

    A FileSet never writes to the files or their folder, and reads nothing before it is needed. It reads any
    plain TFRecord file. A sidecar (`FILE.idx`) has the offsets of the records; a file without a sidecar is
    scanned once for each FileSet, many files at a time. `python -m cachecd_client.index` writes sidecars,
    and inflates compressed files, because they cannot be read at random.
    """

    def __init__(
        self, paths: Path | Iterable[Path], *, schema: Schema | None = None,
        window: int | Literal["auto"] | None = "auto",
    ) -> None:  # fmt: skip
        """One path or several; a file that is named twice is read twice. For patterns, use `glob`.

        schema: replaces the schema in the sidecars, or the schema that is inferred from some records.
        window: bytes of files from which records are read at random. A set that fits is shuffled exactly;
            a larger set is shuffled within a sliding window of whole files, which is read ahead. "auto": as
            for a lease, half of the memory that the cgroup of this process allows, and at most 16,384
            files. None or 0: the whole set, whatever its size.

        CallerError if there are no paths, if a path is not a file, or for an impossible option.
        """
        if isinstance(paths, (str, os.PathLike)):
            paths = [paths]
        self._files: Collection[str] = [os.fsdecode(path) for path in paths]
        if not self._files:
            raise CallerError("this FileSet has no files: check the pattern or the list of files")
        if schema is not None and not isinstance(schema, Schema):
            raise CallerError(
                f"schema={reprlib.repr(schema)}, expected a Schema; Schema.from_json() reads one from JSON"
            )
        if absent := [path for path in self._files if not os.path.isfile(path)]:
            raise CallerError(
                f"{len(absent)} of {len(self._files)} files do not exist, for example "
                f"{absent[0]}{_hint(absent[0])}"
            )
        self._schema = schema
        self._window_option: int | str | None = window
        if window is not None and window != "auto":
            self._window_option = integer("window", window, 0) or None

    @property
    def files(self) -> list[str]:
        """The paths of the files, for any TFRecord reader."""
        return list(self._files)

    @cached_property
    def schema(self) -> Schema:
        """The features of every record.

        The sidecars have the schema. Without sidecars, it is inferred from some records of several files: a
        list is ragged if its length differs, or if some records lack it. SchemaError if the records do not
        fit one schema, or are not Examples.
        """
        return schema_of(self._located) if self._schema is None else self._schema

    @cached_property
    def num_records(self) -> int:
        """Records in all files, across all ranks."""
        return sum(file.num_records for file in self._located)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of all files, without sidecars."""
        return sum(file.num_bytes for file in self._located)

    @cached_property
    def window(self) -> int | None:
        """The shuffle window in bytes; None: the whole set."""
        if self._window_option is None or isinstance(self._window_option, int):
            return self._window_option
        return resources.window_of(self.num_bytes, len(self._files))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the names and lengths of the files, in their order, without their folder."""
        digest = hashlib.sha256()
        for path in self._files:
            name = os.fsencode(os.path.basename(path))  # has no zero byte
            digest.update(b"%b\0%d\0" % (name, os.path.getsize(path)))
        return digest.hexdigest()[:32]

    def numpy(self, batch_size: int, **options: Unpack[Options]) -> Loader:
        """Batches of NumPy arrays; bfloat16 is delivered as uint16. Options: see `Loader`."""
        return self._loader(batch_size, Numpy(), options)

    def torch(
        self, batch_size: int, *, device: Any = None, channels_last: bool | Sequence[str] = False,
        **options: Unpack[Options],
    ) -> Loader:  # fmt: skip
        """Batches of torch tensors that share memory with the arrays, or are copied to `device`.

        The loader copies the next batch to a CUDA device while the loop uses the current batch: from pinned
        memory, on a separate stream. The current stream of `next()` waits for that stream. Besides the
        batches that the loop keeps, at most three are on the device, however far the loop runs ahead of it.
        CallerError for a device that does not exist.
        channels_last: a list of features [H, W, C], or True for all features with three axes. They are
        delivered as views [rows, C, H, W], contiguous in torch.channels_last, which is fastest for
        convolutions. Columns whose rows differ in length stay columns; `column.to_torch(device)` converts
        them to jagged tensors. Options: see `Loader`.
        """
        return self._torch(batch_size, device, channels_last, options)

    def to_dataset(
        self, batch_size: int, *, channels_last: bool | Sequence[str] = False, **options: Unpack[Options],
    ) -> IterableDataset[Batch]:  # fmt: skip
        """The batches of `torch()` as a dataset, for programs that require torch's DataLoader.

        `DataLoader(dataset, batch_size=None, num_workers=N)` delivers the batches of `torch()`, in the
        same order, for every N. Its workers, forked or spawned, make the batches in turn. The dataset has
        `len()`, and the state that torchdata's StatefulDataLoader saves. `torch()` is faster, because the
        DataLoader copies batches between processes. Columns whose rows differ in length stay columns.
        """
        from cachecd_client.frameworks.torch_dataset import BatchDataset

        if "rank" not in options and "world" not in options:
            # Checked here, because a worker has no process group.
            self._check_other_nodes()
            options["rank"], options["world"] = self._share or place(None, None)
        make = partial(self._torch, batch_size, None, channels_last, options)
        with self._resuming() as begin:
            dataset = BatchDataset(make, begin)
        loader = dataset.loader
        to = "a dataset's workers"
        step, by = loader.batch_size * loader.world, weakref.ref(loader)
        self.lend(Lent(to, len(loader), step, loader.dropped, loader.part, by))
        return dataset

    def tf(self, batch_size: int, **options: Unpack[Options]) -> Loader:
        """Batches of TensorFlow tensors that share memory with the arrays, in the order of `Loader`.

        Dense features are tensors [rows, *shape], ragged features tf.RaggedTensors, bytes are string
        tensors. Only strings are copied, so `features` without strings is faster. With `label`, batches are
        tuples for Keras, whose `weighted_metrics` ignore the padding of `pad_last`.
        `model.train_on_batch(*batch)` does not copy batches. `model.fit(iter(loader),
        steps_per_epoch=len(loader), shuffle=False)` copies them, and reads one epoch: for several epochs,
        pass a generator that iterates over the loader repeatedly. Options: see `Loader`.
        """
        from cachecd_client.frameworks.tensorflow import TensorFlow

        return self._loader(batch_size, TensorFlow(), options)

    def jax(self, batch_size: int, *, device: Any = None, **options: Unpack[Options]) -> Loader:
        """Batches of jax.Arrays that share memory with the arrays on a CPU, else are copied to `device`.

        `device`: a device or a sharding, as in jax.device_put; None: JAX's default device. CallerError if
        it cannot hold [batch_size, *shape] of a feature. If a sharding has devices of several processes,
        each process contributes `batch_size` rows, and the arrays have the rows of all processes. JAX
        narrows 64-bit numbers to 32 bits unless `jax_enable_x64` is on; SchemaError for an integer that
        does not fit. Bytes, and columns whose rows differ in length, stay columns; `column.to_jax()`
        converts them to arrays. Options: see `Loader`.
        """
        from cachecd_client.frameworks.jax import Jax

        rank, world = options.get("rank"), options.get("world")
        given = self._replica if rank is None or world is None else (rank, world)
        return self._loader(batch_size, Jax(device, batch_size, given), options)

    def tf_dataset(
        self, batch_size: int, *, reshuffle: bool = True, **options: Unpack[TfOptions]
    ) -> tensorflow.data.Dataset:
        """A stock tf.data pipeline: TensorFlow reads the files and parses their records with the schema.

        Elements are dicts of feature name -> tensor [rows, *shape] (tf.RaggedTensor for ragged features),
        or (dict, label) tuples with `label`. `seed` (with tf.random.set_seed) determines the order; each
        iteration has another order, unless reshuffle=False. TensorFlow shuffles the files, and the records
        within a buffer, while a `Loader` shuffles the whole set. Every rank reads all files and keeps its
        share of the records. `drop_last` and `pad_last` are as for `Loader`: a short last batch, or full
        batches and `_valid`, the third value of a tuple. In a run with `steps_per_epoch`, or at the end
        of `records`, the pipeline has as many batches as a loader, but not the same records. It repeats a
        small set in another order, and does not read the rest of a large set.
        """
        from cachecd_client.frameworks import tf_pipeline

        if options.get("rank") is None and options.get("world") is None:
            self._check_other_nodes()
        reading = self._reading(self.schema)
        reading.begin()
        # TensorFlow does not report its position.
        pipeline, lent = tf_pipeline.dataset(
            reading, batch_size, self.drop_state, flag("reshuffle", reshuffle), options
        )
        self.lend(lent)
        return pipeline

    def __len__(self) -> NoReturn:
        """CallerError: a DataLoader calls `len`, but a FileSet is not a Dataset."""
        raise CallerError(
            f"{type(self).__name__} has no length, because it is not a Dataset. For batches, use "
            ".torch(batch_size=...). For a DataLoader with batch_size=None, use .to_dataset(batch_size). "
            "num_records is the number of records"
        )

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        """Shows the number of files, and of records if they were counted before."""
        known = self.__dict__.get("num_records")
        records = "" if known is None else f", {known} records"
        first = reprlib.repr(next(iter(self._files)))
        return f"<{type(self).__name__} of {len(self._files)} files{records}, the first is {first}>"

    @cached_property
    def _located(self) -> Sequence[Located]:
        return locate(self.files)

    def _stores(self, name: str) -> bool:
        return name in self.schema.names

    def _schema_for(self, options: Options) -> Schema:
        """Returns the schema for a loader with these options."""
        return self.schema

    def _reading(self, schema: Schema) -> Reading:
        return Reading(
            files=[(os.path.abspath(file.path), file.offsets) for file in self._located],
            schema=schema,
            num_records=self.num_records,
            num_bytes=self.num_bytes,
            fingerprint=self.fingerprint,
            window=self.window,
            share=self._share,
        )

    def drop_state(self) -> None:
        """Makes readers begin with the first batch, even if a state named a later batch."""

    @contextmanager
    def _resuming(self) -> Iterator[dict[str, Any] | None]:
        """Yields the state at which the first loader begins; after an error, the next caller gets it."""
        yield None

    def _check_other_nodes(self) -> None:
        """Warns if this node's ranks divide the files, although other nodes may read the same files."""
        rank, world = local_ranks()
        if gathering(world) is not None:
            _warn_of_other_nodes(rank, world)

    #: Set by the options of `epochs()`: the replica of the model in this process, (number, count), and its
    #: (rank, world) in the set.
    _replica: tuple[int, int] | None = None
    _share: tuple[int, int] | None = None

    def lend(self, lent: Lent) -> None:
        """Notes the batches that a reader outside of this process reads."""

    def _torch(
        self, batch_size: int, device: Any, channels_last: bool | Sequence[str], options: Options,
        every: int = 1, threads: int = 0,
    ) -> Loader:  # fmt: skip
        from cachecd_client.frameworks.torch import Torch

        framework = Torch(device, channels_last)
        return self._loader(batch_size, framework, {"threads": threads, **options}, every)

    def _loader(
        self, batch_size: int, framework: Framework, options: Options, every: int = 1
    ) -> Loader:
        options = with_label(options, self._stores)
        if options.get("rank") is None and options.get("world") is None:
            self._check_other_nodes()
        reading = self._reading(self._schema_for(options))
        return Loader(reading, batch_size, framework, every, **options)


@cache
def _warn_of_other_nodes(rank: int, world: int) -> None:
    log.warning(
        "only the ranks of this node divide this FileSet (this is rank %d of %d), but the run has more "
        "processes. If all nodes have the same files, pass rank= and world= of the whole run to the "
        "loaders. If each node has other files, pass rank=%d, world=%d",
        rank, world, rank, world,
    )  # fmt: skip


def _hint(path: str) -> str:
    if os.path.isdir(path):
        return ", a directory: give the files in it"
    if os.path.exists(path):
        return ", which is not a regular file"
    if "://" in path:
        return ": a FileSet reads local files; a daemon, `cachecd run`, caches the files of a store"
    if glob.has_magic(path):
        return f": patterns are not expanded, give sorted(glob.glob({path!r}))"
    return ""
