"""How the arrays of a batch become values of a framework."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cachecd_client._core import Division
from cachecd_client.errors import SchemaError
from cachecd_client.loader.columns import Bytes, Ragged, RaggedBytes
from cachecd_client.schema import Feature, Schema

# The columns that the loader itself may add, as features of the schema.
IDS = {name: Feature(name, "int64", "int64", ()) for name in ("_shard", "_record", "_dataset")}
ADDED = {"_valid": Feature("_valid", "bytes", "bool", (), raw=True), **IDS}


class Wrap(NamedTuple):
    """What a column's arrays go through, once a batch, on their way out of the core.

    `call` gets them as positional arguments, in the core's order; None leaves them as they are.
    `dlpack`: as DLPack capsules, for one use each, in place of NumPy arrays. Their memory is let go
    without the GIL, on whatever thread drops the last value over it.
    """

    call: Callable[..., Any] | None
    dlpack: bool = False


class Lane(Protocol):
    """A way to a device, on which batches travel one behind the other."""

    def send(self, batch: dict[str, Any]) -> Any:
        """Begins to send the batch, and returns without waiting what `receive` takes for it."""

    def receive(self, sent: Any) -> dict[str, Any]:
        """The batch, for use behind all that the caller has begun on the device."""


class Framework(Protocol):
    """A framework's side of the hand-over."""

    @property
    def copies(self) -> bool:
        """Whether its values take memory of their own: then no batch is wrapped before its turn."""

    @property
    def lane(self) -> Lane | None:
        """The way to a device on which each batch, a dict, is sent ahead."""

    def wrap(self, feature: Feature, made: bool = False) -> Wrap:
        """What makes a value of the feature's column; asked once per loader. `made`: of what `prepare`
        returned, which is a NumPy array or a column."""

    def check(self, delivered: Schema, division: Division, rank: int) -> None:
        """SchemaError if it was asked for what none of a loader's features has; CallerError if it cannot
        take the rank's batches as they are divided."""


class Numpy:
    """Arrays as the core makes them; bfloat16 as uint16."""

    copies = False
    lane = None

    def wrap(self, feature: Feature, made: bool = False) -> Wrap:
        return Wrap(None) if made or is_dense(feature) else columns(feature)

    def check(self, delivered: Schema, division: Division, rank: int) -> None:
        """Takes any."""


def is_dense(feature: Feature) -> bool:
    """Whether the feature's column is one array."""
    return feature.shape is not None and feature.dtype != "bytes"


def some(feature: Feature) -> tuple[int, ...]:
    """The shape of a bytes feature; SchemaError if it says that there is nothing."""
    shape = feature.shape or ()
    if 0 in shape:
        raise SchemaError(f"feature {feature.name!r}: no strings in shape {shape}: leave it out")
    return shape


def columns(feature: Feature) -> Wrap:
    """For a feature that is not dense: a column that indexes like a list."""
    if feature.dtype != "bytes":
        bfloat16 = feature.dtype == "bfloat16"
        return Wrap(lambda values, row_splits: Ragged(values, row_splits, bfloat16))
    if feature.shape is None:
        return Wrap(lambda data, offsets, row_splits: RaggedBytes(Bytes(data, offsets), row_splits))
    if not feature.shape:
        return Wrap(Bytes)
    # A list of the same length in every row, which no array can hold either.
    each = math.prod(some(feature))

    def lists(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> RaggedBytes:
        strings = Bytes(data, offsets)
        return RaggedBytes(strings, np.arange(0, len(strings) + 1, each, dtype=np.int64))

    return Wrap(lists)


def renumbered(wrap: Wrap, numbers: NDArray[np.int64]) -> Wrap:
    """`wrap` for a column of indices into `numbers`, or -1, that is to hold the numbers."""
    known = np.append(numbers, -1)  # where index -1 finds it

    def renumber(indices: NDArray[np.int64]) -> Any:
        indices[...] = known[indices]
        value = indices.__dlpack__() if wrap.dlpack else indices
        return value if wrap.call is None else wrap.call(value)

    return Wrap(renumber)
