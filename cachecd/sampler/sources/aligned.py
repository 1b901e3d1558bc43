"""Arrays that are read together: found by their common stem, and checked to fit."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.config.array import ArrayConfig
from cachecd.config.keypattern import text_in
from cachecd.errors import UnitError
from cachecd.sampler.sources.arrays import LARGEST, Array, Begun, open_array
from cachecd.sampler.sources.content import Content
from cachecd.sampler.sources.windows import Cut, Windows, is_dense
from cachecd.stores.backend import GoneError
from cachecd_client.schema import Feature, Schema, infer


@dataclasses.dataclass(frozen=True, slots=True)
class Aligned:
    """Arrays that are read together: feature -> array, and its rows per row of the first one."""

    arrays: Mapping[str, Array]
    ratios: Mapping[str, tuple[int, int]]
    cut: Cut

    def range_of(self, name: str, start: int, stop: int) -> tuple[int, int]:
        """Which rows of this array belong to rows [start, stop) of the first."""
        rows, per = self.ratios[name]
        return start * rows // per, stop * rows // per

    async def rows(self, name: str, content: Content, bounds: tuple[int, int]) -> NDArray[Any]:
        """These rows of the array. UnitError names it, unless it is the first one."""
        try:
            return await self.arrays[name].rows(content, *bounds)
        except UnitError as error:
            if name == next(iter(self.arrays)):
                raise
            raise UnitError(f"array.arrays.{name}: {error}", passing=error.passing) from error

    @property
    def schema(self) -> Schema:
        features = [Feature("key", "bytes", "bytes", ()), Feature("start", "int64", "int64", ())]
        for name, array in self.arrays.items():
            layout = array.layout
            _, length = self.range_of(name, 0, self.cut.windows.window)
            nothing = np.zeros((), layout.stored.newbyteorder("="))
            example = {name: np.broadcast_to(nothing, (length, *layout.shape))}
            [feature] = infer(example).features
            features.append(dataclasses.replace(feature, dtype=layout.dtype))
        return Schema(tuple(sorted(features, key=lambda feature: feature.name)))


def siblings(config: ArrayConfig, key: str) -> dict[str, str]:
    """Feature -> key of all arrays that are read together with `key`, itself included. UnitError if
    it is not the first one."""
    (name, first), *others = config.files.items()
    if not others:
        return {name: key}
    assert first.match is not None
    stem = text_in(first.match, key)
    if stem is None:
        raise UnitError(f"no object {first.match!r} of array.arrays.{name} belongs to it")
    keys = {name: key}
    for other, file in others:
        assert file.match is not None
        keys[other] = file.match.replace("*", stem)
    return keys


async def open_aligned(
    config: ArrayConfig,
    key: str,
    content: Content,
    size: int | None = None,
    begun: Begun | None = None,
) -> Aligned:
    """The arrays of `key`; `size` and `begun` are of that object (arrays.open_array). UnitError."""
    opened: dict[str, Array] = {}

    async def open_one(name: str, named: str) -> None:
        known = (size, begun) if named == key else (None, None)
        try:
            opened[name] = await open_array(config.files[name], named, content, *known)
        except UnitError as error:
            if named == key:
                raise
            why = "is missing" if isinstance(error, GoneError) else f"cannot be used: {error}"
            raise UnitError(f"{named!r} of array.arrays.{name} {why}") from None

    try:
        async with asyncio.TaskGroup() as group:
            for name, named in siblings(config, key).items():
                group.create_task(open_one(name, named))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return _aligned(config, {name: opened[name] for name in config.files})


def _aligned(config: ArrayConfig, arrays: dict[str, Array]) -> Aligned:
    first = next(iter(arrays.values())).layout
    ratios = {}
    for name, array in arrays.items():
        rows = array.layout.rows
        if not rows or not first.rows or (rows % first.rows and first.rows % rows):
            raise UnitError(
                f"array.arrays.{name} has {rows} rows and the first array {first.rows}: expected one "
                "to be a multiple of the other"
                if rows
                else "the array has 0 rows"
            )
        ratios[name] = (max(rows // first.rows, 1), max(first.rows // rows, 1))
    grain = math.lcm(*(per for _, per in ratios.values()))
    windows = Windows.of(config, first.rows, grain)
    total = sum(
        array.layout.row_bytes * ratios[name][0] / ratios[name][1] for name, array in arrays.items()
    )
    if windows.window * total > LARGEST:
        raise UnitError(
            f"a window of {windows.window} rows has {windows.window * total:.0f} bytes, expected at "
            f"most {LARGEST}: lower array.window"
        )
    cut = Cut(
        windows,
        is_dense(config),
        next(iter(arrays.values())).at,
        first.row_bytes,
        max(1, math.ceil(total)),
    )
    cut.check()
    return Aligned(arrays, ratios, cut)
