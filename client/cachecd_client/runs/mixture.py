"""One epoch of several datasets that are mixed when they are read: the mixture, its schema and weights."""

from __future__ import annotations

import hashlib
import math
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

import cachecd_client._core as _core
from cachecd_client import resources
from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.lease.leased_set import JoinedFiles, LeasedSet
from cachecd_client.loader.reading import Reading
from cachecd_client.loader.sweep import Part, Selection, Stage, Sweep
from cachecd_client.runs.epoch import Epoch
from cachecd_client.runs.run import Run, RunState
from cachecd_client.schema import Feature, Schema, dims

if TYPE_CHECKING:
    from cachecd_client.loader.options import Options
_REMEDY = "give features=[...] without it, or make it equal with the `transform` or `label` of the datasets"


def mixed(
    schemas: Mapping[str, Schema], features: Iterable[str] | None = None, default: Collection[str] = (),
) -> Schema:  # fmt: skip
    """Returns the schema of the records of all these datasets: `features`, or all common features.
    `default`: features that a dataset may lack. SchemaError for a feature that has different forms in two
    datasets, or that a dataset lacks."""
    if features is None:
        names = [set(schema.names) for schema in schemas.values()]
        features = sorted(set.intersection(*names) | set.union(*names) & set(default))
    elif isinstance(features, str):
        raise SchemaError(f"features={features!r}, expected a list of names: [{features!r}]")
    return Schema(tuple(_common(name, schemas, name in default) for name in features))


def _common(name: str, schemas: Mapping[str, Schema], may_lack: bool) -> Feature:
    """Returns the common form of a feature; without class names if a dataset has no class names."""
    by_dataset = {dataset: s[name] for dataset, s in schemas.items() if name in s.names}
    lacking = [dataset for dataset in schemas if dataset not in by_dataset]
    if not by_dataset:
        raise SchemaError(f"no feature {name!r} in any of the datasets {', '.join(schemas)}")
    (first, feature), *others = by_dataset.items()
    for other, other_feature in others:
        if _form(other_feature) != _form(feature):
            raise SchemaError(
                f"feature {name!r} is {_described(feature)} in {first!r} and {_described(other_feature)} "
                f"in {other!r}: {_REMEDY}"
            )
        if other_feature.classes and not feature.classes:  # compare with the first class names
            first, feature = other, other_feature
        elif other_feature.classes and other_feature.classes != feature.classes:
            pairs = zip_longest(feature.classes, other_feature.classes)
            place, (one, another) = next((i, p) for i, p in enumerate(pairs) if p[0] != p[1])
            raise SchemaError(
                f"feature {name!r} has different classes in {first!r} and {other!r}: class {place} is "
                f"{_shown(one)} and {_shown(another)}: {_REMEDY}"
            )
    if lacking and not may_lack and feature.shape is not None:
        raise SchemaError(
            f"feature {name!r} of {first!r} is not in {', '.join(map(repr, lacking))}: give "
            f"features=[...] without it, or default={{{name!r}: ...}}"
        )
    if lacking or not all(each.classes for each in by_dataset.values()):
        return replace(feature, classes=())
    return feature


def _shown(name: str | None) -> str:
    return "none" if name is None else repr(name)


def _form(feature: Feature) -> Feature:
    return replace(feature, classes=(), optional=False)


def _described(feature: Feature) -> str:
    stored = " as raw bytes" if feature.raw else f" as a list of {feature.kind}"
    return f"{feature.dtype}{dims(feature.shape)}{stored}"


class Mixture(Epoch):
    """The files of several datasets that one epoch of one job reads, all leased.

    Unlike in an `Epoch`, the dataset of each record is drawn by weight. The record is the next record in
    a shuffled pass over that dataset, even if the dataset is pinned. Batches are always full. `schema`
    has the features that all datasets have. `ids=True` adds `_dataset`, int64: the place of the dataset
    in `weights`; `_shard` is a number within that dataset.
    """

    #: The share of each dataset in the epoch, in the caller's order.
    weights: Mapping[str, float]

    def __init__(
        self, sets: Sequence[LeasedSet], weights: Mapping[str, float], run: Run,
        resumed: RunState | None = None,
    ) -> None:  # fmt: skip
        """`sets`: sorted by dataset, so that all ranks have one order. `weights`: the weights of at least
        these datasets; they add up to 1, and may be 0. `resumed`: the state of an earlier process with
        these sets."""
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
        shares = [weights[leased.dataset] for leased in sets]
        self._drawn = [leased for leased in sets if weights[leased.dataset]]
        self._bounds = _bounds([weights[leased.dataset] for leased in self._drawn])
        records = [leased.manifest.num_records for leased in self._drawn]
        length = _core.draws_until(self._bounds, self._key, records)
        self._set_up(sets, shares, length, run, resumed, weights, self._key)

    @cached_property
    def schema(self) -> Schema:
        """The features that the records of all datasets have.

        SchemaError if a feature has different forms in two datasets; then give loaders `features` without
        this feature.
        """
        return mixed({leased.dataset: leased.schema for leased in self._sets})

    def _repeat(self, number: int, weights: Mapping[str, float]) -> Mixture:
        assert self._run is not None
        leased_names = [leased.dataset for leased in self._sets]
        if whole := sum(weights.get(name, 0.0) for name in leased_names):
            # In the caller's order, which decides `_dataset`.
            shares = {n: w / whole if n in leased_names else 0.0 for n, w in weights.items()}
            weights = shares | {name: 0.0 for name in leased_names if name not in shares}
        else:
            weights = self.weights
        return Mixture([leased.repeated(number) for leased in self._sets], weights, self._run)

    def tf_dataset(self, *_: object, **__: object) -> NoReturn:
        """CallerError: TensorFlow's own readers cannot read parts of files."""
        raise CallerError(NO_TF_DATASET)

    def _part(self, step: int, seed: int) -> Part:
        run, length = self._run, self._passes.length
        assert run is not None
        if empty := [one.dataset for one in self._drawn if not one.manifest.num_records]:
            raise CallerError(
                f"the set of {empty[0]} has a weight, but no records: there is nothing to read"
            )
        if run.steps_per_epoch is None and step > length:
            raise CallerError(
                f"an epoch of {self.dataset} has {length} records, but a step across all ranks needs "
                f"{step}: choose a smaller batch_size, or steps_per_epoch=, which reads a small set "
                "several times"
            )
        sweeps = run.sweeps if run.limits(length) else None
        return run.part(length, step, lambda wanted: self._take(wanted, sweeps, seed))

    def _take(self, positions: int, sweeps: Mapping[str, Sweep] | None, seed: int) -> Selection:
        """Selects the records of `positions` draws. `sweeps`: by dataset; None: the epoch reads at most one
        pass of each dataset."""
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
        places = list(self.weights)
        of_sets = np.array([places.index(leased.dataset) for leased in self._sets], np.int64)
        return np.repeat(of_sets, [len(leased.files) for leased in self._sets])

    def _stores(self, name: str) -> bool:
        return any(name in leased.schema.names for leased in self._sets)

    def _schema_for(self, options: Options) -> Schema:
        if not options.get("shuffle") and options.get("shuffle") is not None:
            raise CallerError(
                "shuffle=False: a mixture is always shuffled; to read datasets one after another, take "
                "epochs() of each"
            )
        schemas = {leased.dataset: leased.schema for leased in self._sets}
        default = options.get("default")
        lacking = default if isinstance(default, Mapping) else ()  # the loader refuses other types
        return mixed(schemas, options.get("features"), lacking)

    def _reading(self, schema: Schema) -> Reading:
        return replace(super()._reading(schema), datasets=self._datasets)


NO_TF_DATASET = (
    "tf_dataset() reads one dataset: TensorFlow's own readers cannot read parts of files, as a mixture "
    "does; use cache.tf({...}, batch_size, epochs), or epoch.tf() of each epoch of epochs({...})"
)


def _digest(texts: Iterable[str]) -> bytes:
    return hashlib.sha256("\0".join(texts).encode()).digest()


def _bounds(weights: Sequence[float]) -> list[int]:
    """Returns the cumulative weights, scaled to 2**62, with which the core compares its draws."""
    bounds = [round(2**62 * below) for below in accumulate(weights)]
    return [*(min(bound, 2**62) for bound in bounds[:-1]), 2**62]


def _windows(sizes: Sequence[int], window: int | None) -> list[int]:
    """Returns the shuffle window of each set, for the sizes in bytes; 0: the whole set. The smallest sets
    are shuffled as a whole, as long as the windows of the other sets are at least as large."""
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
    """Returns the shuffle window of all sets together; None: all sets fit into memory."""
    window = min([resources.window(), *(window for window in windows if window is not None)])
    return window if size > window else None


# Weights by dataset; or a function that returns them for the progress of the run, 0..1.
Mixing = Mapping[str, float] | Callable[[float], Mapping[str, float]]


class Weights:
    """The caller's weights: a mapping, or a function of the progress."""

    def __init__(self, given: Mixing) -> None:
        self._given = given
        if not callable(given):
            self.at(0.0)

    def at(self, progress: float) -> dict[str, float]:
        """Returns the share of each dataset, in the caller's order; the shares add up to 1. Reads the
        mapping, or calls the function, each time. CallerError for impossible weights."""
        given = self._given(progress) if callable(self._given) else self._given
        if not isinstance(given, Mapping) or not given:
            raise CallerError(
                f"dataset={reprlib.repr(given)}: expected a name, or a dict of dataset -> weight with at "
                "least one dataset"
            )
        weights = {name: _weight(name, weight) for name, weight in given.items()}
        if not (most := max(weights.values())):
            raise CallerError(
                f"the weights of {', '.join(weights)} are all 0: there is nothing to read"
            )
        # Divides by the largest weight first, because the sum of finite weights may be infinite.
        whole = math.fsum(weight / most for weight in weights.values())
        return {name: weight / most / whole for name, weight in weights.items()}


def _weight(name: str, weight: float) -> float:
    if not isinstance(name, str):
        raise CallerError(f"dataset: {name!r} is not the name of a dataset")
    try:
        number = float(weight)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise CallerError(f"weight {weight!r} of dataset {name!r}, expected a number of 0 or more")
    return number
