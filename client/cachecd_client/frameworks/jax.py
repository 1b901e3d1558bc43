"""Batches of jax.Arrays, which share memory with the arrays on a CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy.typing import NDArray

from cachecd_client._core import Division
from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.loader.columns import jax_array
from cachecd_client.loader.framework import Wrap, columns, is_dense
from cachecd_client.schema import Feature, Schema

if TYPE_CHECKING:
    from cachecd_client.loader.columns import Place


class Jax:
    """Dense features as arrays on `device`, or on the default device; other features as columns. If
    jax.device_put refuses the device, or the sharding cannot divide [batch_size, *shape] of a feature, the
    constructor and `wrap` raise CallerError, so that no pass fails later."""

    name = "jax"
    marks = None
    lane = None

    def __init__(
        self, device: Place, batch_size: int, given: tuple[int, int] | None = None
    ) -> None:
        """`given`: the caller's rank and world."""
        self._device = device
        self._given = given
        self._batch_size = batch_size
        devices: Iterable[Any]
        if isinstance(device, jax.sharding.Sharding):
            devices = device.device_set
        else:
            try:
                devices = jax.device_put(np.zeros(1, np.int8), device).devices()
            except (TypeError, ValueError, RuntimeError) as error:
                raise CallerError(f"device={device!r}: {error}") from error
        self.copies = {each.platform for each in devices} != {"cpu"}

    def wrap(self, feature: Feature, made: bool = False) -> Wrap:
        if not is_dense(feature):
            return Wrap(None) if made else columns(feature)
        if isinstance(self._device, jax.sharding.Sharding):
            assert feature.shape is not None
            if -1 in feature.shape:
                raise CallerError(
                    f"feature {feature.name!r}, device: a sharding needs pictures of a known shape: give "
                    "its Image a pair as size, or a crop"
                )
            _refuse_replicas(self._device, feature, self._given)
            if refusal := self._refusal(self._batch_size, feature):
                raise CallerError(f"feature {feature.name!r}, device: {refusal}") from refusal
        bfloat16 = feature.dtype == "bfloat16"

        def place(dense: NDArray[Any]) -> jax.Array:
            try:
                return jax_array(dense, bfloat16, self._device)
            except SchemaError as error:
                raise SchemaError(f"feature {feature.name!r}: {error}") from None

        return Wrap(place)

    def check(self, delivered: Schema, division: Division, rank: int) -> None:
        """Raises CallerError if the sharding cannot hold a short batch."""
        if division.is_full or not isinstance(self._device, jax.sharding.Sharding):
            return
        remedy = "pad_last=True adds rows that `_valid` masks, drop_last=True drops the batch"
        if not self._device.is_fully_addressable:
            raise CallerError(
                "the last batch may be short, but processes of a sharding need equal parts of an array: "
                + remedy
            )
        for rows in np.unique(division.rows(rank)):
            for feature in filter(is_dense, delivered.features):
                if refusal := self._refusal(rows, feature):
                    raise CallerError(f"a batch of {rows} rows, {refusal}: {remedy}") from refusal

    def _refusal(self, rows: int, feature: Feature) -> ValueError | None:
        """Returns JAX's error if the device cannot hold this many rows of the feature, else None."""
        try:
            jax_array(np.zeros((rows, *(feature.shape or ())), np.int8), device=self._device)
        except ValueError as error:
            return error
        return None


def _refuse_replicas(
    sharding: jax.sharding.Sharding, feature: Feature, given: tuple[int, int] | None
) -> None:
    """Raises CallerError if processes that hold the same rows of a batch would read different records, or
    the reverse. Each process checks its own rank, so no process waits for another."""
    if sharding.is_fully_addressable:
        return
    assert feature.shape is not None
    rows_of: dict[int, set[int]] = {}  # by process
    shape = (len(sharding.device_set), *feature.shape)
    device: Any
    try:
        for device, indices in sharding.devices_indices_map(shape).items():
            rows = indices[0].indices(shape[0]) if indices else (0, 1, 1)
            rows_of.setdefault(device.process_index, set()).update(range(*rows))
    except ValueError as error:
        raise CallerError(f"feature {feature.name!r}, device: {error}") from error
    parts = sorted({frozenset(rows) for rows in rows_of.values()}, key=min)
    if sum(map(len, parts)) != len(frozenset().union(*parts)):
        raise CallerError(
            f"device={sharding}: some processes have only a part of their rows of each batch in common. "
            "Choose a sharding in which any two processes have the same rows, or no row in common"
        )
    if jax.process_index() not in rows_of:
        raise CallerError(f"device={sharding} has no device of this process, expected at least one")
    shares_rows = len(parts) < len(rows_of)
    number = parts.index(frozenset(rows_of[jax.process_index()]))
    expected = f"rank={number}, world={len(parts)}"
    if given is None and shares_rows:
        raise CallerError(
            f"device={sharding}: processes hold the same rows of each batch, but would read different "
            f"records for them; give {expected} to epochs(), or to the loader of a run or a FileSet"
        )
    if given is not None and (given[1] != len(parts) or (shares_rows and given[0] != number)):
        raise CallerError(
            f"device={sharding}: this process holds part {number} of the {len(parts)} parts of each batch: "
            f"expected {expected}, and got rank={given[0]}, world={given[1]}"
        )
