"""Makes the order of a block's units by their classes, in a thread and a stretch at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import numpy as np
import structlog
from numpy.typing import NDArray

from cachecd.complaints import Complaints
from cachecd.config import DatasetConfig
from cachecd.errors import DiskError
from cachecd.events import BlockOrdered, Event, OrderBlock
from cachecd.index import Index
from cachecd.sampler.sources.files import label_of
from cachecd.strata import Block, stratified

_STRETCH = 1 << 14  # units, some 30 ms: so soon a daemon that ends is rid of the thread
_AGAIN_IN = 1.0  # seconds, while the disk refuses

_log = structlog.get_logger("cachecd.ordering")


class Ordering:
    """Carries OrderBlock out. A million units take 2.3 s, and 32 MB until the order is there."""

    def __init__(
        self,
        datasets: Mapping[str, DatasetConfig],
        indexes: Mapping[str, Index],
        complaints: Complaints,
        feed: Callable[[Event], None],
    ) -> None:
        self._datasets = datasets
        self._indexes = indexes
        self._complaints = complaints
        self._feed = feed

    async def carry_out(self, command: OrderBlock) -> None:
        """Feeds BlockOrdered in the end, however often the disk refuses to give the listing back."""
        name, block, began = command.dataset, command.block, time.monotonic()
        while (classes := await self._classes_of(name, block)) is None:
            await asyncio.sleep(_AGAIN_IN)
        order = await asyncio.to_thread(stratified, classes, block.key)
        _log.info(
            "units ordered by class",
            dataset=name,
            units=len(order),
            classes=int(classes.max()) + 1,
            took_s=round(time.monotonic() - began, 1),
        )
        self._feed(BlockOrdered(name, block, order))

    async def _classes_of(self, name: str, block: Block) -> NDArray[np.int32] | None:
        """Numbered as they first occur in the block; units without a label are a class of their own. None
        if the disk refuses."""
        source, index = self._datasets[name].source, self._indexes[name]
        assert source is not None, "the configuration requires a source"
        numbers: dict[str | None, int] = {}

        def read(begin: int, end: int) -> list[int]:
            labels = (label_of(source, key, label) for key, label in index.labelled(begin, end))
            return [numbers.setdefault(label, len(numbers)) for label in labels]

        classes = np.empty(block.end - block.begin, np.int32)
        for begin in range(block.begin, block.end, _STRETCH):
            end = min(begin + _STRETCH, block.end)
            try:
                found = await asyncio.to_thread(read, begin, end)
            except DiskError as error:
                self._complaints.refused("listing not read", name, str(error))
                return None
            classes[begin - block.begin : end - block.begin] = found
        self._complaints.works("listing not read", name)
        return classes
