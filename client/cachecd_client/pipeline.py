"""The way of a loader's batches from the native reader to the training loop: framework, device, label."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from cachecd_client._core import BatchReader
from cachecd_client.ahead import OneAhead
from cachecd_client.conversions import Delivery
from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.handover import ADDED, Framework, Wrap, renumbered
from cachecd_client.reading import Reading
from cachecd_client.schema import Feature, Schema

_IDS = ("_shard", "_record", "_dataset")


class Source(Protocol):
    """Batches of one pass, and the figures of those that the loop was given: the reader, or whoever is
    ahead of the loop."""

    @property
    def position(self) -> int: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def queue_filled(self) -> float: ...
    @property
    def seconds_waited(self) -> float: ...
    @property
    def seconds_idle(self) -> float: ...
    def __iter__(self) -> Iterator[dict[str, Any]]: ...
    def close(self) -> None: ...


class Pipeline:
    """What every batch of a loader goes through."""

    def __init__(
        self,
        reading: Reading,
        deliveries: Sequence[Delivery],
        framework: Framework,
        *,
        ids: bool,
        pad_last: bool,
        label: str | None,
    ) -> None:
        """SchemaError for features that the loader itself adds, and for a label that is none of them."""
        self.framework = framework
        self.schema = Schema(tuple(delivery.delivered for delivery in deliveries))
        self._deliveries = deliveries
        added = dict(ADDED)
        if reading.datasets is None:
            del added["_dataset"]
        for name in (d.length for d in deliveries if d.length is not None):
            added[name] = Feature(name, "int64", "int64", ())
        if taken := added.keys() & set(self.schema.names):
            raise SchemaError(f"the loader itself adds {sorted(taken)}: leave these features out")
        present = {"_valid": pad_last, **dict.fromkeys(_IDS, ids)}
        columns = [*self.schema.features, *(f for n, f in added.items() if present.get(n, True))]
        self._wraps: dict[str, Wrap] = {f.name: framework.wrap(f) for f in columns}
        if ids and reading.shards is not None:
            self._wraps["_shard"] = renumbered(self._wraps["_shard"], reading.shards)
        if label is not None and not isinstance(label, str):
            raise CallerError(f"label={label!r}, expected the name of a feature")
        if label is not None:
            self.schema[label]  # SchemaError
        self._label = label

    def for_reader(self) -> dict[str, Any]:
        """The arguments of a BatchReader that say what its batches are made of."""
        return {
            "features": [delivery.for_reader() for delivery in self._deliveries],
            "wrap": {name: wrap.call for name, wrap in self._wraps.items()},
            "dlpack": {name for name, wrap in self._wraps.items() if wrap.dlpack},
            "one_by_one": self.framework.copies,
        }

    def open(self, reader: BatchReader) -> Source:
        """The batches of the reader's pass, as far as they go ahead of the loop."""
        lane = self.framework.lane
        return reader if lane is None else OneAhead(reader, lane)

    def deliver(self, batches: Iterable[dict[str, Any]]) -> Iterable[Any]:
        """The batches as the loop gets them."""
        return batches if self._label is None else map(self._labelled, batches)

    def _labelled(self, batch: dict[str, Any]) -> tuple[Any, ...]:
        """(inputs, label), and what masks padding: Keras takes it as sample weights."""
        label = batch.pop(self._label or "")
        return (batch, label, batch.pop("_valid")) if "_valid" in batch else (batch, label)
