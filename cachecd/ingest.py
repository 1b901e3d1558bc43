"""The daemon's hands for ingest: listing a source, publishing, unlinking and verifying shards.

Everything here blocks or waits; nothing here decides. Results go back as events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

from cachecd.config import SourceConfig
from cachecd.disk import publish, refusing, sync_directory
from cachecd.errors import DiskError, LimitTooSmallError, SourceError
from cachecd.events import Event, IngestStopped, Listed
from cachecd.index import Index
from cachecd.layout import Layout
from cachecd.model import ObjectInfo, Outcome, Shard, ShardId
from cachecd.sampler.fetch import open_store
from cachecd.sampler.sources.files import class_names, label_of
from cachecd.verify import check_file
from cachecd_client._core import Sidecar
from cachecd_client.errors import CorruptError

_LONGEST_PAUSE = 60.0  # a source that is back is found within a minute

_log = structlog.get_logger("cachecd.ingest")


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
            feed(Listed(name, len(index), complete=True))
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


def publish_shard(
    layout: Layout, shard: ShardId, generation: str, outcome: Outcome
) -> tuple[Shard, NDArray[np.uint64]]:
    """Gives a sealed temporary file its name; the shard and the units it holds.

    DiskError, and nothing of the shard on disk, if that fails.
    """
    temporary, final = layout.temporary(shard), layout.shard(shard)
    try:
        units = np.unique(Sidecar.read(str(Layout.sidecar(temporary))).units)
        publish(temporary, final)
    except (DiskError, OSError, CorruptError) as error:
        _discard(temporary)
        if isinstance(error, DiskError):
            raise
        raise DiskError(f"cannot publish {final}: {error}") from error
    allocated = sum(p.stat().st_blocks * 512 for p in (final, Layout.sidecar(final)))
    return Shard(shard, generation, outcome.records, outcome.data_bytes, allocated), units


def _discard(path: Path) -> None:
    for file in (path, Layout.sidecar(path)):
        with refusing(f"cannot remove {file}"):
            file.unlink(missing_ok=True)


def unlink_shard(layout: Layout, shard: ShardId) -> None:
    """Removes both files, the shard first: a sidecar alone is no shard to anybody. DiskError."""
    path = layout.shard(shard)
    _discard(path)
    with refusing(f"cannot sync {path.parent}"):
        sync_directory(path.parent)


def verify_shard(layout: Layout, shard: ShardId) -> str:
    """Reads the shard and its sidecar wholly; what is wrong with it, or "" if it is sound."""
    checked = check_file(layout.shard(shard), of_cache=True)
    if checked is None:
        return f"{layout.shard(shard)} is gone"
    return "; ".join(f"{fault.path}: {fault.why}" for fault in checked.faults)
