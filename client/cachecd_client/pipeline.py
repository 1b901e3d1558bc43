"""The way of a loader's batches from the native reader to the loop: prepare, framework, device, label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from cachecd_client._core import BatchReader, Division
from cachecd_client.ahead import Ahead, OneAhead, Source
from cachecd_client.conversions import Delivery
from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.handover import ADDED, IDS, Framework, Numpy, Wrap, renumbered
from cachecd_client.prepared import Prepare, Prepared, call, feature_of
from cachecd_client.reading import Reading
from cachecd_client.schema import Feature, Schema


class Pipeline:
    """What every batch of a loader goes through. It has one pass at a time."""

    def __init__(
        self, reading: Reading, deliveries: Sequence[Delivery], framework: Framework, division: Division,
        *, rank: int, world: int, ids: bool, pad_last: bool, label: str | None, prepare: Prepare | None,
    ) -> None:  # fmt: skip
        """SchemaError for features that the loader itself adds, and for a label that is no feature; and
        what the framework refuses. What `prepare` returns is checked when it returns it."""
        self.framework = framework
        self.schema = Schema(tuple(delivery.delivered for delivery in deliveries))
        self._division, self._rank, self._world = division, rank, world
        added = dict(ADDED)
        if reading.datasets is None:
            del added["_dataset"]
        for name in (f"_{d.delivered.name}_length" for d in deliveries if "pad" in d.options):
            added[name] = Feature(name, "int64", "int64", ())
        if taken := added.keys() & set(self.schema.names):
            raise SchemaError(f"the loader itself adds {sorted(taken)}: leave these features out")
        present = {"_valid": pad_last, **dict.fromkeys(IDS, ids)}
        columns = [*self.schema.features, *(f for n, f in added.items() if present.get(n, True))]
        if prepare is not None and not callable(prepare):
            raise CallerError(f"prepare={prepare!r}, expected a function")
        first: Framework = framework if prepare is None else Numpy()
        wraps: dict[str, Wrap] = {f.name: first.wrap(f) for f in columns}
        if ids and reading.shards is not None:
            wraps["_shard"] = renumbered(wraps["_shard"], reading.shards)
        #: The arguments of a BatchReader that say what its batches are made of.
        self.for_reader: dict[str, Any] = {
            "features": [(*each.stored.for_reader(), each.options) for each in deliveries],
            "wrap": {name: wrap.call for name, wrap in wraps.items()},
            "dlpack": {name for name, wrap in wraps.items() if wrap.dlpack},
            "one_by_one": first.copies,
        }
        self._prepare = prepare
        self._made: dict[Feature, Wrap] = {}  # what makes values of the columns of `prepare`
        self._bfloat16 = {f.name for f in self.schema.features if f.dtype == "bfloat16"}
        if label is not None and not isinstance(label, str):
            raise CallerError(f"label={label!r}, expected the name of a feature")
        self._label = label or ""
        if prepare is None:
            framework.check(self.schema, division, rank)
            if label is not None:
                self.schema[label]  # SchemaError
        self._stages: list[Ahead] = []  # of the pass that runs

    def open(self, reader: BatchReader, seed: int) -> Source:
        """The batches of the reader's pass, as far as they go ahead of the loop. `seed`: the pass's, from
        which follow the random numbers of `prepare`."""
        source: Source = reader
        if self._prepare is not None:
            source = Prepared(source, partial(self._call, seed), self._finish)
            self._stages.append(source)
        if self.framework.lane is not None:
            source = OneAhead(source, self.framework.lane)
            self._stages.append(source)
        return source

    def close(self) -> None:
        """Ends the threads that work ahead of the loop."""
        while self._stages:
            self._stages.pop().close()

    def deliver(self, batches: Iterable[dict[str, Any]]) -> Iterable[Any]:
        """The batches as the loop gets them."""
        return map(self._labelled, batches) if self._label else batches

    def _labelled(self, batch: dict[str, Any]) -> tuple[Any, ...]:
        """(inputs, label), and what masks padding: Keras takes it as sample weights."""
        if self._label not in batch:
            raise SchemaError(f"prepare returned no {self._label!r}, which is the label")
        label = batch.pop(self._label)
        return (batch, label, batch.pop("_valid")) if "_valid" in batch else (batch, label)

    def _call(self, seed: int, batch: dict[str, Any], number: int) -> dict[str, Any]:
        assert self._prepare is not None
        place = self._division.begin(number, self._rank) * self._world + self._rank
        key = np.array([seed, place], np.uint64)
        return call(self._prepare, batch, np.random.Generator(np.random.Philox(key=key)))

    def _finish(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The columns that `prepare` made, as values of the framework."""
        features = [feature_of(n, column, n in self._bfloat16) for n, column in batch.items()]
        if not self._made:
            self.framework.check(Schema(tuple(features)), self._division, self._rank)
        for feature in features:
            if feature not in self._made:
                self._made[feature] = self.framework.wrap(feature, made=True)
            if (make := self._made[feature].call) is not None:
                batch[feature.name] = make(batch[feature.name])
        return batch
