"""The interface to a framework: how the arrays of a batch become its values."""

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
    """Turns the arrays of a column into a value of the framework, once a batch.

    `call` gets the arrays as positional arguments, in the core's order; None leaves them unchanged.
    `dlpack`: `call` gets DLPack capsules, for one use each, in place of NumPy arrays. Their memory is
    released without the GIL, on the thread that drops the last value over it.
    """

    call: Callable[..., Any] | None
    dlpack: bool = False


class Stage(Protocol):
    """A way to a device, on which batches are sent one after the other."""

    def send(self, batch: dict[str, Any]) -> Any:
        """Begins to send the batch. Returns at once a token for `receive`."""

    def receive(self, sent: Any) -> dict[str, Any]:
        """The batch, for use after all work that the caller has begun on the device."""


class Framework(Protocol):
    """What a loader needs from a framework."""

    @property
    def copies(self) -> bool:
        """Whether values use memory of the framework. Then no batch is wrapped before its turn."""

    @property
    def lane(self) -> Stage | None:
        """The way to a device on which each batch, a dict, is sent ahead."""

    def wrap(self, feature: Feature, made: bool = False) -> Wrap:
        """Makes values of the feature's column; called once for each loader. `made`: the column comes from
        `prepare`, as a NumPy array or a column."""

    def check(self, delivered: Schema, division: Division, rank: int) -> None:
        """SchemaError if an option needs a feature that the loader does not deliver; CallerError if the
        framework cannot take the batches of this rank."""


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


def strings_shape(feature: Feature) -> tuple[int, ...]:
    """The shape of a bytes feature; SchemaError if it has no elements."""
    shape = feature.shape or ()
    if 0 in shape:
        raise SchemaError(f"feature {feature.name!r}: no strings in shape {shape}: leave it out")
    return shape


def columns(feature: Feature) -> Wrap:
    """Makes a column, which indexes like a list, of a feature that is not dense."""
    if feature.dtype != "bytes":
        bfloat16 = feature.dtype == "bfloat16"
        return Wrap(lambda values, row_splits: Ragged(values, row_splits, bfloat16))
    if feature.shape is None:
        return Wrap(lambda data, offsets, row_splits: RaggedBytes(Bytes(data, offsets), row_splits))
    if not feature.shape:
        return Wrap(Bytes)
    # A list of the same length in every row, which no array can hold either.
    each = math.prod(strings_shape(feature))

    def lists(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> RaggedBytes:
        strings = Bytes(data, offsets)
        return RaggedBytes(strings, np.arange(0, len(strings) + 1, each, dtype=np.int64))

    return Wrap(lists)


def renumbered(wrap: Wrap, numbers: NDArray[np.int64]) -> Wrap:
    """`wrap` for a column of indices into `numbers`, or -1, which delivers the numbers."""
    known = np.append(numbers, -1)  # where index -1 finds it

    def renumber(indices: NDArray[np.int64]) -> Any:
        indices[...] = known[indices]
        value = indices.__dlpack__() if wrap.dlpack else indices
        return value if wrap.call is None else wrap.call(value)

    return Wrap(renumber)
