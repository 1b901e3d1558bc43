"""Brings the index of a source up to date with the store, again and again until it has succeeded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import structlog

from cachecd.config import SourceConfig
from cachecd.errors import DiskError, LimitTooSmallError, SourceError
from cachecd.events import Event, IngestStopped, Listed
from cachecd.index import Index
from cachecd.model import ObjectInfo
from cachecd.sampler.fetch import open_store
from cachecd.sampler.sources.files import class_names, label_of

_LONGEST_PAUSE = 60.0  # a source that is back is found within a minute

_log = structlog.get_logger("cachecd.listing")


async def keep_listed(
    name: str,
    source: SourceConfig,
    index: Index,
    connections: int,
    reserve: Callable[[int], None],
    feed: Callable[[Event], None],
) -> None:
    """Lists the source until that has succeeded once in this run; the index on disk serves till then."""
    pause = 1.0
    while True:
        try:
            await list_source(source, index, connections, reserve)
        except (SourceError, DiskError, LimitTooSmallError) as error:
            _log.warning("source not listed", dataset=name, why=str(error), again_in_s=pause)
            feed(IngestStopped(name, str(error)))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        else:
            feed(Listed(name, len(index), complete=True, fresh=True))
            return


async def list_source(
    source: SourceConfig, index: Index, connections: int, reserve: Callable[[int], None]
) -> None:
    """Brings the index up to date with the store: new objects are appended, none is renumbered.

    `reserve` is told what will be taken on disk before it is written, and raises if there is no room.
    SourceUnreachableError as the store raises it; what has been listed so far stays.
    """
    pages = await asyncio.to_thread(lambda: iter(open_store(source, connections).list()))
    classes = set(index.classes)
    while (page := await asyncio.to_thread(_next, pages)) is not None:
        if source.label is not None:
            labels = (label_of(source, found.key) for found in page)
            classes.update(label for label in labels if label is not None)
        # Listed again, a source needs no room for what is known: a cache that is full has none.
        if new := index.new(page):
            reserve(index.cost(new))
            index.append(new)
    names = class_names(classes)
    reserve(index.cost((), names))
    index.finish(names)


def _next(pages: Iterator[list[ObjectInfo]]) -> list[ObjectInfo] | None:
    return next(pages, None)
