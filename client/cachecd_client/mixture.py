"""One epoch of several datasets, mixed as they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from cachecd_client import resources
from cachecd_client.epoch import Epoch
from cachecd_client.errors import CallerError
from cachecd_client.leased import LeasedSet
from cachecd_client.mix import Share, length
from cachecd_client.mixed_schema import mixed
from cachecd_client.reading import Reading
from cachecd_client.run import Part, Run
from cachecd_client.schema import Schema
from cachecd_client.shardfiles import JoinedFiles
from cachecd_client.standing import Standing, Telling

if TYPE_CHECKING:
    from cachecd_client.options import Options


class Mixture(Epoch):
    """The files of several datasets that one epoch of one job reads, all of them on lease.

    As an `Epoch`, with these differences. The records of all datasets are shuffled together, pinned ones
    too, and each has its share of them, in the mean of every batch. Batches are always full: what remains
    of an epoch comes first in the next.
    `schema` has the features that all the datasets have. `ids=True` adds `_dataset`, int64: the dataset's
    place in `weights`; `_shard` numbers the shards of each.
    """

    #: Each dataset's share of the epoch's records, in the order that the caller gave them in.
    weights: Mapping[str, float]

    def __init__(
        self,
        sets: Sequence[LeasedSet],
        weights: Mapping[str, float],
        run: Run,
        resumed: Standing | None = None,
    ) -> None:
        """`sets` by their datasets' names, so that each rank has one order; `weights` are 1 in all, and
        name all of these, of which some may have none. `resumed`: where an earlier process left them."""
        self.weights = dict(weights)
        manifests = [leased.manifest for leased in sets]
        self._files = JoinedFiles([leased.files for leased in sets])
        self._schema = None
        self.num_records = sum(manifest.num_records for manifest in manifests)
        self.num_bytes = sum(manifest.num_bytes for manifest in manifests)
        self.fingerprint = _digest(f"{m.dataset} {m.fingerprint}" for m in manifests).hex()[:32]
        self.epoch = sets[0].number
        #: The leases and datasets, joined by "+".
        self.lease = "+".join(manifest.lease for manifest in manifests)
        self.dataset = "+".join(
            name for name in weights if name in {leased.dataset for leased in sets}
        )
        self.job = manifests[0].job
        seed = _digest(f"{leased.dataset} {leased.seed}" for leased in sets)
        self.seed = int.from_bytes(seed[:8], "little") >> 1
        self.pinned = False
        self.window = _window([manifest.window for manifest in manifests], self.num_bytes)
        if resumed is not None:
            self.window = resumed.window
        of_each = [weights[leased.dataset] for leased in sets]
        self._made_of(sets, of_each, self._length(sets), run, resumed)
        self._telling = Telling(sets, weights, run)

    @cached_property
    def schema(self) -> Schema:
        """The features that the records of all the datasets have.

        SchemaError for one that two of them have in different forms. A loader that is asked for other
        features alone does not mind it.
        """
        return mixed({leased.dataset: leased.schema for leased in self._sets})

    def repeated(self, number: int, weights: Mapping[str, float]) -> Mixture:
        """The same sets as epoch `number`, in another order, by these weights of those that are here.

        Takes over the leases of this one.
        """
        assert self._run is not None
        self._check()
        self._end_passes()
        here = [leased.dataset for leased in self._sets]
        if whole := sum(weights.get(name, 0.0) for name in here):
            # Not in another order, by which `_dataset` counts.
            known = {name: w / whole if name in here else 0.0 for name, w in weights.items()}
            weights = known | {name: 0.0 for name in here if name not in known}
        else:
            weights = self.weights
        mixture = Mixture([leased.repeated(number) for leased in self._sets], weights, self._run)
        self._handed_on = True
        return mixture

    def tf_dataset(self, *_: object, **__: object) -> NoReturn:
        """CallerError: TensorFlow's own readers know no parts of files."""
        raise CallerError(NO_TF_DATASET)

    def _length(self, sets: Sequence[LeasedSet]) -> int:
        counted = [(leased.manifest.num_records, self.weights[leased.dataset]) for leased in sets]
        return length([(records, weight) for records, weight in counted if weight])

    def _shares(self) -> list[Share]:
        return [
            Share(
                leased.dataset,
                self.weights[leased.dataset],
                leased.files.numbers,
                leased.counts,
                leased.manifest.num_bytes,
            )
            for leased in self._sets
        ]

    def _part(self, step: int, seed: int) -> Part:
        run = self._run
        assert run is not None
        shares = self._shares()
        if empty := [s.name for s in shares if s.weight and not s.records.sum()]:
            raise CallerError(
                f"the set of {empty[0]} has no records, and a weight: there is nothing to read"
            )
        if run.steps_per_epoch is None and step > self._passes.length:
            raise CallerError(
                f"an epoch of {self.dataset} has {self._passes.length} records, a step over all ranks "
                f"{step}: choose a smaller batch_size, or steps_per_epoch, by which small sets are read "
                "again"
            )
        return run.part(
            self._passes.length,
            step,
            lambda wanted: run.mix.take(shares, wanted, self.window, seed=seed),
        )

    @property
    def _datasets(self) -> NDArray[np.int64]:
        """What `_dataset` calls the dataset of each file."""
        places = list(self.weights)
        return np.concatenate(
            [
                np.full(len(leased.files), places.index(leased.dataset), np.int64)
                for leased in self._sets
            ]
        )

    def _schema_for(self, options: Options) -> Schema:
        if not options.get("shuffle") and options.get("shuffle") is not None:
            raise CallerError(
                "shuffle=False: datasets are mixed by shuffling; for one after another, take epochs() of "
                "each"
            )
        schemas = {leased.dataset: leased.schema for leased in self._sets}
        default = options.get("default")
        lacking = (
            default if isinstance(default, Mapping) else ()
        )  # the loader says what is wrong with it
        return mixed(schemas, options.get("features"), lacking)

    def _reading(self, schema: Schema) -> Reading:
        return replace(super()._reading(schema), datasets=self._datasets)


NO_TF_DATASET = (
    "tf_dataset() is of one dataset: TensorFlow's own readers know no parts of files, which is how "
    "datasets are mixed; use epoch.tf(batch_size) of each epoch of epochs({...})"
)


def _digest(texts: Iterable[str]) -> bytes:
    return hashlib.sha256("\0".join(texts).encode()).digest()


def _window(windows: Sequence[int | None], size: int) -> int | None:
    """Of sets that may each have none, as it fits into memory, and all together do not."""
    window = min([resources.window(), *(window for window in windows if window is not None)])
    return window if size > window else None
