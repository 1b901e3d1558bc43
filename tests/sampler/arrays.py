"""Arrays in a folder, their units, and the records that a worker makes of them."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cachecd.config import DatasetConfig
from cachecd.model import ObjectInfo, Shape, Unit
from cachecd.units.source_units import list_units
from cachecd.units.unit_store import open_unit_store
from cachecd_client._core import decode_example
from cachecd_client.schema import Schema
from tests.contracts.format import read_back
from tests.sampler.streams import Player


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
        self.made.mkdir(exist_ok=True)
        self.config = DatasetConfig.model_validate(
            config_of(array, f"file://{self.folder}", seed=5)
        )
        self.fetched_bytes = 0
        self.set_aside: dict[str, str] = {}
        self.passed: list[str] = []  # reasons for which records were skipped
        self.schema: Schema | None = None

    def put(self, **objects: bytes | np.ndarray[Any, Any]) -> None:
        for name, body in objects.items():
            path = self.folder / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body if isinstance(body, bytes) else npy(body))

    def pages(self, after: str = "") -> list[list[ObjectInfo]]:
        return list(list_units(self.config.source, open_unit_store(self.config.source, 8), after))

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
        config = self.config.model_dump(mode="json")
        player = Player(self.made, config, todo, Shape(1, 8, 1, capacity, 0))
        asyncio.run(player.play())
        self.schema = Schema.from_json(player.schema) if player.schema else None
        self.fetched_bytes = player.made[-1].outcome.fetched_bytes
        self.set_aside |= {s.key: s.reason for made in player.made for s in made.outcome.skipped}
        self.passed = [one.reason for made in player.made for one in made.outcome.passed]
        paths = [self.made / f"{made.number}.tfrecord" for made in player.made if made.data]
        return [self._decoded(record) for path in paths for record in read_back(path).records]

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
