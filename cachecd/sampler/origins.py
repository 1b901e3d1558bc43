"""Where the units of a dataset come from, for whoever reads them: its source, or the several."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

from typing_extensions import Buffer

from cachecd.config import DatasetConfig, SourceConfig
from cachecd.model import ObjectInfo, SetAside, UnitSlice
from cachecd.sampler.fetch import Store, open_store
from cachecd.sampler.patience import Retry
from cachecd.sampler.sources import Source, open_source
from cachecd.sampler.throttle import Throttle
from cachecd.segments import source_of


@dataclass(frozen=True, slots=True)
class Origin:
    """A source of a dataset: its store, and how its units are read."""

    place: int
    config: SourceConfig
    store: Store
    source: Source

    @property
    def parted(self) -> bool:
        """Whether a unit may be less than its object."""
        return self.source.ranged or self.config.manifest is not None

    def streams(self, unit: UnitSlice) -> bool:
        """Whether the unit is read from any of its records on."""
        return self.config.streams and not unit.seems_packed


class Origins:
    """All sources of a dataset.

    `growth`: bytes written for each byte fetched, as far as seen.
    """

    def __init__(self, config: DatasetConfig, connections: int, retry: Retry | None) -> None:
        self.config = config
        self.growth = 1.0
        self._stores = [open_store(each, connections, retry) for each in config.all_sources]
        self._opened: dict[tuple[str, ...], list[Origin]] = {}  # by the label's classes

    def read_with(self, classes: tuple[str, ...]) -> list[Origin]:
        """Them, in their order. `classes` are the names of the label's classes."""
        if classes not in self._opened:
            both = zip(self.config.all_sources, self._stores, strict=True)
            self._opened = {
                classes: [
                    Origin(place, config, store, open_source(self.config, classes, place))
                    for place, (config, store) in enumerate(both)
                ]
            }
        return self._opened[classes]

    def of(self, unit: UnitSlice, classes: tuple[str, ...]) -> tuple[Origin, UnitSlice]:
        """Where a unit comes from, and the unit as it is called there."""
        origins = self.read_with(classes)
        if len(origins) == 1:
            return origins[0], unit
        place, key = source_of(unit.key)
        return origins[place], dataclasses.replace(unit, key=key)


@dataclass(slots=True)
class Progress:
    """Of one assignment."""

    unit: int | None = None
    fetched_bytes: int = 0
    set_aside: list[SetAside] = field(default_factory=list)
    unreachable: dict[int, str] = field(default_factory=dict)  # sources, and why


@dataclass(slots=True)
class Reader:
    """The store, no faster than allowed, and what comes of it counted."""

    store: Store
    throttle: Throttle
    progress: Progress

    async def get(self, key: str, size: int | None, etag: str, start: int, stop: int) -> Buffer:
        await self.throttle.take(stop - start)
        data = await self.store.get(key, size, etag, start, stop)
        self.progress.fetched_bytes += stop - start
        return data

    async def tail(self, key: str, length: int, etag: str) -> tuple[int, Buffer]:
        await self.throttle.take(length)
        size, data = await self.store.tail(key, length, etag)
        self.progress.fetched_bytes += min(size, length)
        return size, data

    async def find(self, key: str) -> ObjectInfo:
        return await self.store.find(key)

    def list(self) -> Iterator[list[ObjectInfo]]:
        return self.store.list()
