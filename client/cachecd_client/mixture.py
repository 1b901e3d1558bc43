"""One epoch of several datasets, mixed as they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from cachecd_client import _core, resources
from cachecd_client.epoch import Epoch
from cachecd_client.errors import CallerError
from cachecd_client.leased import LeasedSet
from cachecd_client.mixed_schema import mixed
from cachecd_client.reading import Reading
from cachecd_client.run import Part, Run, Selection
from cachecd_client.schema import Schema
from cachecd_client.shardfiles import JoinedFiles
from cachecd_client.standing import Standing, Telling
from cachecd_client.sweep import Stage, Sweep

if TYPE_CHECKING:
    from cachecd_client.loader_options import Options


class Mixture(Epoch):
    """The files of several datasets that one epoch of one job reads, all of them on lease.

    As an `Epoch`, with these differences. The dataset of each record is drawn by weight; the record is the
    next of that dataset's pass, in a shuffled order, of pinned ones too. Batches are always full.
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
        drawn = _digest([f"draws of epoch {self.epoch}", seed.hex()])
        self._key = int.from_bytes(drawn[:8], "little")
        if resumed is not None:
            self.window, self._key = resumed.window, resumed.key
        of_each = [weights[leased.dataset] for leased in sets]
        self._drawn = [leased for leased in sets if weights[leased.dataset]]
        self._bounds = _bounds([weights[leased.dataset] for leased in self._drawn])
        records = [leased.manifest.num_records for leased in self._drawn]
        length = _core.draws_until(self._bounds, self._key, records)
        self._made_of(sets, of_each, length, run, resumed)
        self._telling = Telling(sets, weights, run, self._key)

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
        self.count_delivered()
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

    def _part(self, step: int, seed: int) -> Part:
        run, length = self._run, self._passes.length
        assert run is not None
        if empty := [one.dataset for one in self._drawn if not one.manifest.num_records]:
            raise CallerError(
                f"the set of {empty[0]} has no records, and a weight: there is nothing to read"
            )
        if run.steps_per_epoch is None and step > length:
            raise CallerError(
                f"an epoch of {self.dataset} has {length} records, a step over all ranks {step}: choose "
                "a smaller batch_size, or steps_per_epoch, by which small sets are read again"
            )
        sweeps = run.sweeps if run.limits(length) else None
        return run.part(length, step, lambda wanted: self._take(wanted, sweeps, seed))

    def _take(self, positions: int, sweeps: Mapping[str, Sweep] | None, seed: int) -> Selection:
        """The records of so many positions. `sweeps`: how far each dataset has been read; None: an epoch
        is part of one pass of each dataset."""
        drawn = _core.drawn(self._bounds, self._key, positions)
        windows = _windows([one.manifest.num_bytes for one in self._drawn], self.window)
        begins = accumulate((len(leased.files) for leased in self._sets), initial=0)
        first = dict(zip(self._sets, begins, strict=False))
        stages: list[Stage] = []
        after: dict[str, Sweep] = {}
        parts = []
        for leased, count, window in zip(self._drawn, drawn, windows, strict=True):
            name, begin = leased.dataset, first[leased]
            if sweeps is None:
                whole = np.zeros((len(leased.files), 3), np.uint64)
                whole[:, 0], whole[:, 2] = np.arange(len(leased.files)), leased.counts
                own = [whole]
            else:
                sweep = sweeps.get(name, Sweep()).of(leased.manifest.generation)
                own, after[name] = sweep.take(
                    leased.files.numbers, leased.counts, count, whole_files=window > 0, seed=seed
                )
            for stage in own:
                stage[:, 0] += np.uint64(begin)
            stages += own
            parts.append((window, own))
        mixture = self._bounds, self._key, positions, parts
        return Selection(stages, after, mixture)

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

    def _stores(self, name: str) -> bool:
        return any(name in leased.schema.names for leased in self._sets)

    def _schema_for(self, options: Options) -> Schema:
        if not options.get("shuffle") and options.get("shuffle") is not None:
            raise CallerError(
                "shuffle=False: datasets are mixed by shuffling; for one after another, take epochs() of "
                "each"
            )
        schemas = {leased.dataset: leased.schema for leased in self._sets}
        default = options.get("default")
        lacking = default if isinstance(default, Mapping) else ()  # the loader refuses another
        return mixed(schemas, options.get("features"), lacking)

    def _reading(self, schema: Schema) -> Reading:
        return replace(super()._reading(schema), datasets=self._datasets)


NO_TF_DATASET = (
    "tf_dataset() is of one dataset: TensorFlow's own readers know no parts of files, which is how "
    "datasets are mixed; use epoch.tf(batch_size) of each epoch of epochs({...})"
)


def _digest(texts: Iterable[str]) -> bytes:
    return hashlib.sha256("\0".join(texts).encode()).digest()


def _bounds(weights: Sequence[float]) -> list[int]:
    """The cumulative weights, of 2**62, as the core compares its draws with them."""
    bounds = [round(2**62 * below) for below in accumulate(weights)]
    return [*(min(bound, 2**62) for bound in bounds[:-1]), 2**62]


def _windows(sizes: Sequence[int], window: int | None) -> list[int]:
    """The shuffle window of each set of so many bytes; 0: the whole set.

    The smallest sets are whole as long as they leave the others at least as much each.
    """
    windows = [0] * len(sizes)
    if window is None:
        return windows
    places = sorted(range(len(sizes)), key=lambda place: sizes[place])
    for done, place in enumerate(places):
        share = window // (len(places) - done)
        if sizes[place] > share:
            windows[place] = max(1, share)
        window -= min(sizes[place], share)
    return windows


def _window(windows: Sequence[int | None], size: int) -> int | None:
    """Of sets that may each have none, as it fits into memory, and all together do not."""
    window = min([resources.window(), *(window for window in windows if window is not None)])
    return window if size > window else None
