"""Arrays in a folder, their units, and the records that come of them."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cachecd.config import DatasetConfig
from cachecd.errors import UnitError
from cachecd.model import ObjectInfo, Unit
from cachecd.sampler.draft import Draft
from cachecd.sampler.opening import open_store
from cachecd.sampler.sources import open_source
from cachecd.sampler.units import list_units
from cachecd.stores.fetch import Store
from cachecd_client._core import decode_example
from cachecd_client.schema import Schema
from tests.contracts.source import read_back


def npy(array: np.ndarray[Any, Any], version: tuple[int, int] = (1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def config_of(
    array: Mapping[str, Any], url: str = "file:///nowhere", **more: Any
) -> dict[str, Any]:
    return {"source": {"url": url, "format": "npy", "array": array}, **more}


class Place:
    """A folder of objects, its listing, and what becomes of the units: all but the processes."""

    def __init__(self, folder: Path, **array: Any) -> None:
        self.folder = folder / "objects"
        self.folder.mkdir(exist_ok=True)
        self.made = folder / "made"
        self.config = DatasetConfig.model_validate(
            config_of(array, f"file://{self.folder}", seed=5)
        )
        self.asked: list[tuple[str, int, int]] = []
        self.looked_up: list[str] = []
        self.set_aside: dict[str, str] = {}
        self.schema: Schema | None = None

    def put(self, **objects: bytes | np.ndarray[Any, Any]) -> None:
        for name, body in objects.items():
            path = self.folder / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body if isinstance(body, bytes) else npy(body))

    def store(self) -> Store:
        assert self.config.source is not None
        return open_store(self.config.source, 8)

    def pages(self, after: str = "") -> list[list[ObjectInfo]]:
        assert self.config.source is not None
        return list(list_units(self.config.source, self.store(), after))

    def units(self) -> list[ObjectInfo]:
        return list(itertools.chain(*self.pages()))

    def records(
        self, units: list[ObjectInfo] | None = None, capacity: int = 64 << 20
    ) -> list[dict[str, Any]]:
        """Of all units, or these, by way of sealed shards."""
        todo = [
            Unit(n, u.key, u.size, u.etag, begin=u.begin)
            for n, u in enumerate(self.units() if units is None else units)
        ]
        return asyncio.run(self._pour(todo, capacity))

    async def _pour(self, todo: list[Unit], capacity: int) -> list[dict[str, Any]]:
        source, store = open_source(self.config, ()), self.store()
        found: list[dict[str, Any]] = []
        while todo:
            draft = Draft(str(self.made), capacity, self.schema, self._described, {})
            rest: list[Unit] = []
            for at, unit in enumerate(todo):
                try:
                    if reason := source.refusal(unit, capacity):
                        raise UnitError(reason)
                    content = Fetched(self, store, source, unit)
                    async with aclosing(source.pour(unit, content, draft)) as positions:
                        async for reached in positions:
                            position = reached
                            if draft.full:
                                break
                except UnitError as error:
                    self.set_aside[unit.key] = str(error)
                    continue
                if draft.full:
                    left = replace(unit, record=position[0], offset=position[1])
                    rest = [left, *todo[at + 1 :]]
                    break
            if draft.records:
                draft.seal({})
                found += map(self._decoded, read_back(self.made).records)
            draft.abort()
            todo = rest
        return found

    def _described(self, schema: Schema) -> None:
        self.schema = schema

    def _decoded(self, stored: tuple[int, int, bytes]) -> dict[str, Any]:
        assert self.schema is not None
        found: dict[str, Any] = {"unit": stored[0], "ordinal": stored[1]}
        for name, (_, values) in decode_example(stored[2]).items():
            feature = self.schema[name]
            if feature.raw:
                dtype = "uint16" if feature.dtype == "bfloat16" else feature.dtype
                values = np.frombuffer(values[0], dtype).reshape(feature.shape)
            elif feature.dtype != "bytes" and feature.shape != ():
                values = np.asarray(values, feature.dtype)
            found[name] = values if isinstance(values, np.ndarray) else values[0]
        return found


class Fetched:
    def __init__(self, place: Place, store: Store, source: Any, unit: Unit) -> None:
        self._place, self._store, self._unit = place, store, unit
        self._span = source.span(unit)
        self.chunks = self._chunks()

    async def _chunks(self) -> AsyncIterator[Any]:
        start, stop = self._span
        for at in range(start, stop, 100_000):
            yield await self.read(at, min(at + 100_000, stop))

    async def read(self, start: int, stop: int, key: str | None = None, etag: str = "") -> Any:
        self._place.asked.append((key or self._unit.key, start, stop))
        return await self._store.get(key or self._unit.key, None, etag, start, stop)

    async def tail(self, length: int, key: str | None = None, etag: str = "") -> Any:
        size, data = await self._store.tail(key or self._unit.key, length, etag)
        self._place.asked.append((key or self._unit.key, max(size - length, 0), size))
        return size, data

    async def find(self, key: str) -> ObjectInfo:
        self._place.looked_up.append(key)
        return await self._store.find(key)
