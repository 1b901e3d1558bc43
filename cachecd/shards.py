"""What is done to shards on disk: published, unlinked, verified; the result goes back as an event.

Nothing here decides, and nothing here keeps the event loop waiting for a shard's bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

from cachecd.catalog import Catalog
from cachecd.disk import publish, refusing, sync_directory
from cachecd.errors import DiskError
from cachecd.events import Event, ShardFailed, ShardPublished, ShardUnlinked, ShardVerified
from cachecd.layout import Layout
from cachecd.model import Outcome, Shard, ShardId
from cachecd.saving import PlanSaver
from cachecd.verify import check_file
from cachecd_client._core import Sidecar
from cachecd_client.errors import CorruptError

_UNLINK_AGAIN = 5.0  # seconds after which a disk that refused to unlink may be well

_log = structlog.get_logger("cachecd.shards")


class ShardWork:
    """Carries PublishShard, UnlinkShard and VerifyShard out, each as a task of the event loop."""

    def __init__(
        self,
        layout: Layout,
        catalog: Catalog,
        saver: PlanSaver,
        units_of: Callable[[ShardId], list[int]],
        feed: Callable[[Event], None],
    ) -> None:
        """`units_of`: those that the plan counts the shard for."""
        self._layout = layout
        self._catalog = catalog
        self._saver = saver
        self._units_of = units_of
        self._feed = feed

    async def publish(self, shard: ShardId, generation: str, outcome: Outcome) -> None:
        """Ends in ShardPublished, or in ShardFailed with nothing of it left on disk."""
        try:
            sealed, units = await asyncio.to_thread(
                publish_shard, self._layout, shard, generation, outcome
            )
        except DiskError as error:
            _log.warning("shard not published", shard=str(shard), why=str(error))
            self._feed(ShardFailed(shard, "disk", str(error)))
        else:
            self._feed(ShardPublished(sealed, [int(u) for u in units]))

    async def unlink(self, shard: ShardId) -> None:
        """Ends in ShardUnlinked, once the disk allows it."""
        while True:
            try:
                if self._saver.behind:
                    raise DiskError("the catalog is behind: what the shard holds is not known")
                units = self._units_of(shard)
                await asyncio.to_thread(unlink_shard, self._layout, shard)
                self._catalog.remove(shard)
            except DiskError as error:
                _log.warning("shard not removed", shard=str(shard), why=str(error))
                await asyncio.sleep(_UNLINK_AGAIN)
            else:
                self._feed(ShardUnlinked(shard, units))
                return

    async def verify(self, shard: ShardId) -> None:
        """Ends in ShardVerified."""
        why = await asyncio.to_thread(verify_shard, self._layout, shard)
        if why:
            _log.error("shard is corrupt: barred, and fetched again", shard=str(shard), why=why)
        self._feed(ShardVerified(shard, not why, self._units_of(shard)))


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
