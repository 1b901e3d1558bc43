"""The interface to a framework, which converts the arrays of a batch to values of the framework."""

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

# The columns that the loader may add, as features.
IDS = {name: Feature(name, "int64", "int64", ()) for name in ("_shard", "_record", "_dataset")}
ADDED = {"_valid": Feature("_valid", "bytes", "bool", (), raw=True), **IDS}


class Wrap(NamedTuple):
    """Converts the arrays of a column to a value of the framework, once per batch.

    `call` gets the arrays as positional arguments, in the core's order; None leaves them unchanged.
    `dlpack`: `call` gets DLPack capsules, for one use each, instead of NumPy arrays. The thread that drops
    the last value with this memory releases it, without the GIL.
    """

    call: Callable[..., Any] | None
    dlpack: bool = False


class Marks(NamedTuple):
    """Marks for the profiler of a framework. A profiler runs while `namespace[flag]` is true; `mark` makes
    a context manager, which the profiler shows as a range of time."""

    namespace: dict[str, Any]
    flag: str
    mark: Callable[[], Any]


class Stage(Protocol):
    """Sends batches to a device, one after the other."""

    @property
    def is_busy(self) -> bool:
        """Whether the device still waits for work before the last batch that was sent. Then the loop runs
        ahead of the device, which does not wait for the next batch."""

    def send(self, batch: dict[str, Any]) -> Any:
        """Begins to send the batch, and returns a token for `receive` at once."""

    def receive(self, sent: Any) -> dict[str, Any]:
        """Returns the batch, ordered after all work that the caller has begun on the device."""


class Framework(Protocol):
    """The requirements of a loader for a framework."""

    @property
    def name(self) -> str:
        """The name of the loader's method, for reports."""

    @property
    def marks(self) -> Marks | None:
        """The marks for batches; None if the framework has no profiler that marks can ask for free."""

    @property
    def copies(self) -> bool:
        """Whether values use memory of the framework. Then no batch is wrapped before its turn."""

    @property
    def lane(self) -> Stage | None:
        """The stage that sends each batch, a dict, to a device ahead of the loop; None: no stage."""

    def wrap(self, feature: Feature, made: bool = False) -> Wrap:
        """Returns the conversion of the feature's column; called once for each loader. `made`: `prepare`
        returned the column, as a NumPy array or a column."""

    def check(self, delivered: Schema, division: Division, rank: int) -> None:
        """SchemaError if an option needs a feature that the loader does not deliver; CallerError if the
        framework cannot convert the batches of this rank."""


class Numpy:
    """Delivers the core's arrays; bfloat16 as uint16."""

    name = "numpy"
    marks = None
    copies = False
    lane = None

    def wrap(self, feature: Feature, made: bool = False) -> Wrap:
        return Wrap(None) if made or is_dense(feature) else columns(feature)

    def check(self, delivered: Schema, division: Division, rank: int) -> None:
        """Accepts all features and batches."""


def is_dense(feature: Feature) -> bool:
    """Whether the feature's column is one array."""
    return feature.shape is not None and feature.dtype != "bytes"


def strings_shape(feature: Feature) -> tuple[int, ...]:
    """Returns the shape of a bytes feature; SchemaError if it has no elements."""
    shape = feature.shape or ()
    if 0 in shape:
        raise SchemaError(
            f"feature {feature.name!r}: shape {shape} has no elements: do not select it"
        )
    return shape


def columns(feature: Feature) -> Wrap:
    """Returns the conversion of a feature that is not dense to a column, which indexes like a list."""
    if feature.dtype != "bytes":
        bfloat16 = feature.dtype == "bfloat16"
        return Wrap(lambda values, row_splits: Ragged(values, row_splits, bfloat16))
    if feature.shape is None:
        return Wrap(lambda data, offsets, row_splits: RaggedBytes(Bytes(data, offsets), row_splits))
    if not feature.shape:
        return Wrap(Bytes)
    # No array can hold lists of byte strings, even if all lists have the same length.
    each = math.prod(strings_shape(feature))

    def lists(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> RaggedBytes:
        strings = Bytes(data, offsets)
        return RaggedBytes(strings, np.arange(0, len(strings) + 1, each, dtype=np.int64))

    return Wrap(lists)


def renumbered(wrap: Wrap, numbers: NDArray[np.int64]) -> Wrap:
    """Returns `wrap` for a column of indices into `numbers` or -1: it delivers the numbers or -1."""
    values = np.append(numbers, -1)  # index -1 is the last element

    def renumber(indices: NDArray[np.int64]) -> Any:
        indices[...] = values[indices]
        value = indices.__dlpack__() if wrap.dlpack else indices
        return value if wrap.call is None else wrap.call(value)

    return Wrap(renumber)
