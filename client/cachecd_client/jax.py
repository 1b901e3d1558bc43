"""Arrays as jax.Arrays, on the CPU over the same memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from numpy.typing import NDArray

from cachecd_client._core import Division
from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.handover import Wrap, columns, is_dense
from cachecd_client.replicas import rows_of
from cachecd_client.schema import Feature, Schema

Place: TypeAlias = jax.Device | jax.sharding.Sharding | None


def array(of: NDArray[Any], bfloat16: bool = False, device: Place = None) -> jax.Array:
    """A jax.Array of `of`: on the CPU over its memory if that is aligned to 64 bytes, else a copy.

    The memory must not be written to any more. 64-bit numbers become 32-bit ones unless
    jax_enable_x64 is on: SchemaError for an integer that does not fit, and a float that does not is
    infinite. `bfloat16`: the uint16 elements are bfloat16. `device`: as in jax.device_put; of a sharding
    over devices of several processes, `of` is this process's part.
    """
    if bfloat16:
        of = of.view(jnp.bfloat16)
    elif (narrow := jax.dtypes.canonicalize_dtype(of.dtype)) != of.dtype:
        of = _narrowed(of, narrow)
    placed: jax.Array
    if isinstance(device, jax.sharding.Sharding) and not device.is_fully_addressable:
        placed = jax.make_array_from_process_local_data(device, of)  # type: ignore[no-untyped-call]
    else:
        placed = jax.device_put(of, device)
    return placed


class Jax:
    """Dense features as arrays on `device`, or the default one; others as columns.

    What jax.device_put does not take is a CallerError here, and not in the middle of a pass: a
    device that there is not, a sharding that does not divide a feature's [batch_size, *shape].
    """

    finish = None
    lane = None

    def __init__(
        self,
        device: Place,
        batch_size: int,
        placed: tuple[int, int] | None = None,
        holders: Mapping[int, int] | None = None,
    ) -> None:
        """`placed`: rank and world as the caller has given them, of which each process of the sharding is
        asked once. `holders`: the replica of each process, by a mesh."""
        self._device = device
        self._placed = placed
        self._holders = holders
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

    def wrap(self, feature: Feature) -> Wrap:
        if not is_dense(feature):
            return columns(feature)
        if isinstance(self._device, jax.sharding.Sharding):
            assert feature.shape is not None
            if self._placed is not None and not self._device.is_fully_addressable:
                self._holders, self._placed = _ranks_of_all(self._device, *self._placed), None
            _refuse_replicas(self._device, feature, self._holders)
            try:
                array(np.zeros((self._batch_size, *feature.shape), np.int8), device=self._device)
            except ValueError as error:
                raise CallerError(f"feature {feature.name!r}, device: {error}") from error
        bfloat16 = feature.dtype == "bfloat16"

        def place(dense: NDArray[Any]) -> jax.Array:
            try:
                return array(dense, bfloat16, self._device)
            except SchemaError as error:
                raise SchemaError(f"feature {feature.name!r}: {error}") from None

        return Wrap(place)

    def check(self, delivered: Schema, division: Division, rank: int) -> None:
        """CallerError for a short batch that the sharding cannot take."""
        if division.is_full or not isinstance(self._device, jax.sharding.Sharding):
            return
        refusal = (
            "pad_last=True fills it up with rows that `_valid` masks, drop_last=True leaves it out"
        )
        if not self._device.is_fully_addressable:
            raise CallerError(
                "a last batch may be short, and the processes of a sharding give equal parts of an array: "
                + refusal
            )
        for rows in np.unique(division.rows(rank)):
            for feature in filter(is_dense, delivered.features):
                try:
                    array(np.zeros((rows, *(feature.shape or ())), np.int8), device=self._device)
                except ValueError as error:
                    raise CallerError(f"a batch of {rows} rows, {error}: {refusal}") from error


def _ranks_of_all(sharding: jax.sharding.Sharding, rank: int, world: int) -> dict[int, int]:
    """The rank of each process, as its caller has given it. All processes have to ask. CallerError if they
    do not say the same of how many there are."""
    told = multihost_utils.process_allgather(np.array([rank, world], np.int32))
    worlds = {int(each) for _, each in told}
    if len(worlds) > 1:
        raise CallerError(
            f"device={sharding}: its processes were given world={sorted(worlds)}, expected one number of "
            "replicas"
        )
    return {process: int(each) for process, (each, _) in enumerate(told)}


def _refuse_replicas(
    sharding: jax.sharding.Sharding, feature: Feature, holders: Mapping[int, int] | None
) -> None:
    """CallerError if two processes hold the same rows of a batch and would read different records for them,
    or the other way round."""
    if sharding.is_fully_addressable:
        return
    assert feature.shape is not None
    try:
        held = rows_of(sharding, (len(sharding.device_set), *feature.shape))
    except ValueError as error:
        raise CallerError(f"feature {feature.name!r}, device: {error}") from error
    for (one, rows), (other, others) in combinations(sorted(held.items()), 2):
        same = holders is not None and holders.get(one) == holders.get(other)
        if same and rows != others:
            raise CallerError(
                f"device={sharding}: processes {one} and {other} hold different rows of each batch, but "
                "one replica by the mesh= or the rank= that they were given, so they would read the same "
                "records for these rows; give the sharding of the batches as mesh=, and no rank="
            )
        if not same and rows & others:
            raise CallerError(
                f"device={sharding}: processes {one} and {other} hold the same rows of each batch, and "
                "would read different records for them; give the mesh, or this sharding, as mesh= to "
                "epochs(), acquire() or FileSet, or both processes the same rank= of world= replicas, and "
                "the same files"
            )


def _narrowed(of: NDArray[Any], narrow: np.dtype[Any]) -> NDArray[Any]:
    """The 64-bit numbers as 32-bit ones."""
    if narrow.kind == "f":
        with np.errstate(over="ignore"):
            return of.astype(narrow)
    limits = np.iinfo(narrow)
    beyond = of[(of < limits.min) | (of > limits.max)]
    if beyond.size:
        raise SchemaError(
            f"{beyond.flat[0]} does not fit {narrow}, to which JAX narrows {of.dtype}: set "
            "jax_enable_x64, or leave the feature out"
        )
    return of.astype(narrow)
