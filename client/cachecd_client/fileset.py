"""A set of TFRecord files, read in the trainer's framework; no daemon needed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from cachecd_client import _core
from cachecd_client.errors import CallerError
from cachecd_client.handover import Framework, Numpy
from cachecd_client.loader import Loader, Options
from cachecd_client.reading import Reading
from cachecd_client.schema import Schema, infer_examples

if TYPE_CHECKING:
    import tensorflow

_SIDECAR = ".idx"
_INFERRED_FROM = 64  # records; enough to meet a list whose length varies, read in milliseconds

Path = str | os.PathLike[str]


class FileSet:
    """TFRecord files of `tf.train.Example` records, in the order given.

    Any TFRecord files will do. Where a file has a sidecar (`FILE.idx`), its records are found
    there; otherwise the file is walked once. Nothing is read before it is asked for, and then
    only for reading: the files and their folder are never written to.
    """

    def __init__(
        self,
        paths: Path | Iterable[Path],
        *,
        schema: Schema | None = None,
        window: int | None = None,
    ) -> None:
        """`schema` overrides what the sidecars say or the first records suggest.

        `window`: bytes of files that are read at random from at a time. A set that fits is shuffled
        exactly; a larger one within a sliding window of whole files, read ahead in one sweep each.
        None: the whole set, whatever its size; give one for sets larger than memory.

        CallerError if there are no paths, or one names no file.
        """
        if isinstance(paths, (str, os.PathLike)):
            paths = [paths]
        self._files = [os.fspath(path) for path in paths]
        if not self._files:
            raise CallerError("a FileSet of no files: check what should have found some")
        if window is not None and window < 1:
            raise CallerError(f"window={window}, expected at least 1 byte, or None")
        if absent := [path for path in self._files if not os.path.isfile(path)]:
            raise CallerError(
                f"{len(absent)} of {len(self._files)} files do not exist, the first is {absent[0]}"
            )
        self._schema = schema
        #: The shuffle window in bytes; None: the whole set.
        self.window = window
        self._known: dict[str, tuple[NDArray[np.uint64] | None, int]] = {}

    @property
    def files(self) -> list[str]:
        """The files' paths, for any TFRecord reader."""
        return list(self._files)

    @cached_property
    def schema(self) -> Schema:
        """The features of every record.

        From the first file's sidecar, else inferred from the first records; SchemaError if these
        cannot be one dataset's.
        """
        if self._schema is not None:
            return self._schema
        try:
            meta = json.loads(_core.Sidecar.read(self._files[0] + _SIDECAR).meta or "{}")
        except FileNotFoundError:
            meta = {}
        if meta.get("schema"):
            return Schema.from_json(meta["schema"])
        return infer_examples(islice(self._records(), _INFERRED_FROM))

    @cached_property
    def num_records(self) -> int:
        """Records in all files, over all ranks."""
        return sum(self._find(path)[1] for path in self._files)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of all files, without sidecars."""
        return sum(os.path.getsize(path) for path in self._files)

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

    def _reading(self) -> Reading:
        """What a loader needs to know of this set."""
        return Reading(
            files=[(path, self._find(path)[0]) for path in self._files],
            schema=self.schema,
            num_records=self.num_records,
            fingerprint=self.fingerprint,
            window=self.window,
        )

    def _loader(self, batch_size: int, framework: Framework, options: Options) -> Loader:
        return Loader(self._reading(), batch_size, framework, **options)

    def _find(self, path: str) -> tuple[NDArray[np.uint64] | None, int]:
        """(offsets, number) of the records of one file; no offsets if its sidecar has them."""
        if path not in self._known:
            try:
                self._known[path] = None, len(_core.Sidecar.read(path + _SIDECAR))
            except FileNotFoundError:
                # Kept, so that no pass walks the file again.
                offsets = _core.scan(path)
                self._known[path] = offsets, len(offsets)
        return self._known[path]

    def _records(self) -> Iterator[bytes]:
        """The records in order, one by one: for looking at a few."""
        for path in self._files:
            offsets, _ = self._find(path)
            if offsets is None:
                offsets = _core.Sidecar.read(path + _SIDECAR).offsets
            for offset in offsets:
                yield _core.read_record(path, int(offset))
