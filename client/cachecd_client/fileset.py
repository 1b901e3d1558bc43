"""A set of TFRecord files, read in the trainer's framework; no daemon needed."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from cachecd_client.errors import CallerError, WorldError
from cachecd_client.handover import Framework, Numpy
from cachecd_client.inferring import schema_of
from cachecd_client.loader import Loader, Options
from cachecd_client.locating import Located, locate
from cachecd_client.reading import Reading
from cachecd_client.schema import Schema
from cachecd_client.scratch import Scratch

if TYPE_CHECKING:
    import tensorflow

# Inflated copies that TensorFlow reads: it is told paths, and holds nothing that says for how long.
_until_the_end: set[Scratch] = set()

Path = str | os.PathLike[str]


class FileSet:
    """TFRecord files of `tf.train.Example` records, in the order given.

    Any TFRecord files will do, compressed ones (GZIP, ZLIB) too. Where a file has a sidecar
    (`FILE.idx`), its records are found there; otherwise it is looked through once, many files at a
    time. A compressed file cannot be read at random: it is inflated once, into a temporary
    directory ($TMPDIR, else /tmp) that goes with this set and its loaders. Nothing is read before
    it is asked for, and then only for reading: the files and their folder are never written to.
    """

    def __init__(
        self,
        paths: Path | Iterable[Path],
        *,
        schema: Schema | None = None,
        window: int | None = None,
        cache_index: Path | None = None,
    ) -> None:
        """One path or several; a file that is named twice is read twice. Patterns: use `glob`.

        schema: overrides what the sidecars say or some records suggest.
        window: bytes of files that are read at random from at a time. A set that fits is shuffled
            exactly; a larger one within a sliding window of whole files, read ahead in one sweep
            each. None: the whole set, whatever its size; give one for sets larger than memory.
        cache_index: a directory that keeps what was found about files without a sidecar, inflated
            copies included, for later runs and for other processes, which wait for each other
            instead of doing it twice. What belongs to a file that changed is found anew. If it
            cannot be written to, that is said in the log and nothing is kept.

        CallerError if there are no paths, or one names no file.
        """
        if isinstance(paths, (str, os.PathLike)):
            paths = [paths]
        self._files = [os.fsdecode(path) for path in paths]
        if not self._files:
            raise CallerError("a FileSet of no files: check what should have found some")
        if window is not None and window < 1:
            raise CallerError(f"window={window}, expected at least 1 byte, or None")
        if absent := [path for path in self._files if not os.path.isfile(path)]:
            raise CallerError(
                f"{len(absent)} of {len(self._files)} files do not exist, the first is "
                f"{absent[0]}{_hint(absent[0])}"
            )
        self._schema = schema
        #: The shuffle window in bytes; None: the whole set.
        self.window = window
        self._cache_index = None if cache_index is None else os.fsdecode(cache_index)
        self._found: list[Located] | None = None

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
        """Bytes of all files, without sidecars; of compressed ones, what they inflate to."""
        return sum(file.num_bytes for file in self._located)

    @cached_property
    def fingerprint(self) -> str:
        """Names the set: by file names and lengths, in their order, whatever the folder."""
        digest = hashlib.sha256()
        for path in self._files:
            digest.update(f"{os.path.basename(path)}\0{os.path.getsize(path)}\0".encode())
        return digest.hexdigest()[:32]

    def numpy(self, batch_size: int, **options: Unpack[Options]) -> Loader:
        """Batches of NumPy arrays; bfloat16 comes as uint16. Options: see `Loader`."""
        return self._loader(batch_size, Numpy(), options)

    def torch(self, batch_size: int, *, device: Any = None, **options: Unpack[Options]) -> Loader:
        """Batches of torch tensors over the arrays' own memory, or copied to `device`.

        Columns whose rows differ in length stay columns; `column.to_torch(device)` makes jagged
        tensors of them. Options: see `Loader`.
        """
        from cachecd_client import torch

        return self._loader(batch_size, torch.Torch(device), options)

    def tf(
        self, batch_size: int, *, label: str | None = None, **options: Unpack[Options]
    ) -> Loader:
        """Batches of TensorFlow tensors over the arrays' own memory, in the order of `Loader`.

        Dense features are tensors [rows, *shape], ragged ones tf.RaggedTensors, bytes string tensors,
        of which alone the content is copied: `features` without them is faster. With `label`, batches
        are tuples as Keras takes them: (dict, label), or without `drop_last` (dict, label, `_valid`),
        whose `weighted_metrics` then leave padding out. `model.train_on_batch(*batch)` uses them as
        they are; `model.fit(iter(loader), steps_per_epoch=len(loader), shuffle=False)` copies.
        Options: see `Loader`.
        """
        from cachecd_client.tensorflow import TensorFlow

        features = options.get("features")
        if label is not None:
            self.schema[label]  # SchemaError
            if features is not None and label not in features:
                options["features"] = [*features, label]
        return self._loader(batch_size, TensorFlow(label), options)

    def jax(self, batch_size: int, *, device: Any = None, **options: Unpack[Options]) -> Loader:
        """Batches of jax.Arrays, on a CPU over the arrays' own memory, else copied to `device`.

        `device`: as in jax.device_put, a sharding too; JAX's default device if None. JAX narrows 64-bit
        numbers to 32 bits unless `jax_enable_x64` is on; SchemaError for an integer that does not fit.
        Columns whose rows differ in length stay columns, and so do bytes; `column.to_jax()` makes
        arrays of them. Options: see `Loader`.
        """
        from cachecd_client.jax import Jax

        return self._loader(batch_size, Jax(device), options)

    def tf_dataset(
        self,
        batch_size: int,
        *,
        label: str | None = None,
        shuffle: bool | None = None,
        seed: int | None = None,
        drop_last: bool | None = None,
        features: Sequence[str] | None = None,
        rank: int | None = None,
        world: int | None = None,
    ) -> tensorflow.data.Dataset:
        """A stock tf.data pipeline: TensorFlow reads the files and parses them by their schema.

        Elements are dicts of feature name -> tensor [rows, *shape] (tf.RaggedTensor for ragged
        features), or (dict, label) tuples if `label` names one. Each pass has the same order, fixed
        by `seed` (and tf.random.set_seed). It is shuffled by file and within a buffer, not over
        the whole set as `Loader` does, and every rank reads all files to keep its share of the
        records. Without `drop_last` the last batch is short, and with several ranks the
        added feature `_valid` masks the rows that make their numbers equal.
        """
        from cachecd_client import tf_pipeline

        reading = self._reading()
        reading.begin()
        _until_the_end.update(file.keep for file in self._found or () if file.keep)
        return tf_pipeline.dataset(
            reading,
            batch_size,
            num_bytes=self.num_bytes,
            label=label,
            shuffle=reading.shuffle if shuffle is None else shuffle,
            seed=reading.seed if seed is None else seed,
            drop_last=reading.drop_last if drop_last is None else drop_last,
            features=features,
            rank=rank,
            world=world,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._files)} files>"

    @property
    def _located(self) -> Sequence[Located]:
        """The files and where their records are, looked for once.

        Again only if inflated copies are gone: those of a set that came from another process.
        """
        if self._found is None or any(file.gone for file in self._found):
            self._found = locate(self._files, self._cache_index)
        return self._found

    def _begin(self) -> None:
        """Before each pass. It also lets the loader hold this set, and so the inflated copies."""
        for file in self._found or ():
            if file.gone:
                raise WorldError(
                    f"the inflated copy of {file.path}, {file.data}, was removed by somebody: make "
                    "the loader anew"
                )

    def _reading(self) -> Reading:
        """What a loader needs to know of this set."""
        located = self._located
        return Reading(
            files=[(file.data, file.offsets) for file in located],
            names=self._files,
            schema=self.schema,
            num_records=self.num_records,
            fingerprint=self.fingerprint,
            window=self.window,
            begin=self._begin,
        )

    def _loader(self, batch_size: int, framework: Framework, options: Options) -> Loader:
        return Loader(self._reading(), batch_size, framework, **options)


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
