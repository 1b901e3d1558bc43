"""A dataset's source inside a worker: its store and its format, and the counter of one stream's bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from typing_extensions import Buffer

from cachecd.config import DatasetConfig
from cachecd.model import ObjectInfo, Unit
from cachecd.sampler.formats import PreparedFormat, open_format
from cachecd.sampler.meter import METER
from cachecd.sampler.throttle import Throttle
from cachecd.stores.backend import is_hidden
from cachecd.stores.fetch import Store, open_store
from cachecd.stores.retry import Retry


class Origin:
    """A dataset's source: its store and its format. `growth`: bytes written for each fetched byte."""

    def __init__(
        self,
        config: DatasetConfig,
        connections: int,
        retry: Retry | None,
        memory: float = float("inf"),
    ) -> None:
        self.config = config
        self.growth = 1.0
        self._memory = memory
        self.store = open_store(config.source, connections, retry)
        self._formats: dict[tuple[str, ...], PreparedFormat] = {}  # by the label's classes; one

    def read_with(self, classes: tuple[str, ...]) -> PreparedFormat:
        """Returns the opened format. `classes`: the class names of the label."""
        if classes not in self._formats:
            self._formats = {classes: open_format(self.config, classes, self._memory)}
        return self._formats[classes]


@dataclass(slots=True)
class Progress:
    """The unit that a stream works on, and the bytes that were fetched for the stream."""

    unit: Unit | None = None
    fetched_bytes: int = 0


@dataclass(slots=True)
class MeteredStore:
    """Reads a store at a limited rate, and counts the fetched bytes."""

    store: Store
    throttle: Throttle
    progress: Progress

    async def get(self, key: str, size: int | None, etag: str, start: int, stop: int) -> Buffer:
        await self.throttle.take(stop - start)
        began = time.monotonic()
        data = await self.store.get(key, size, etag, start, stop)
        METER.span("fetch", began, key)
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
        for page in self.store.list():
            yield [each for each in page if each.size and not is_hidden(each.key)]
