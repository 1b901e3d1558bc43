"""What takes room beside the shards, and what the file system has left: measured, or counted in advance."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path

from cachecd.complaints import Complaints
from cachecd.database import CHECKPOINT_BYTES
from cachecd.disk.filesystem import allocated, free_bytes, inodes, refusing
from cachecd.errors import DiskError
from cachecd.events import DiskChecked, Event, MetadataMeasured
from cachecd.ground import Ground
from cachecd.indexroom import IndexRoom
from cachecd.layout import Layout
from cachecd.ledger import METADATA_SLACK
from cachecd.state import State

# Of the slack, what may be written between two measurements without a further one. The other half is
# for what nobody announces: the catalog's write-ahead log, directories.
_UNMEASURED = METADATA_SLACK // 2
# Left for leases and the catalog, on a file system that has enough of them.
_INODES_KEPT = 256
_INODES_A_SHARD = 2


class Meter:
    """Tells the policy once a second, and whenever much is about to be written."""

    def __init__(
        self,
        layout: Layout,
        state: State,
        reserve_free: Callable[[], int],
        complaints: Complaints,
        feed: Callable[[Event], None],
        least: int,
        drop_index: Callable[[], bool],
    ) -> None:
        """`reserve_free`: what the configuration leaves to others on the file system. `least`: what
        indexes leave to the shards. `drop_index`: as IndexRoom has it."""
        self.index_room = IndexRoom(state.ledger, least, lambda: self._measure(0), drop_index)
        self._layout = layout
        self._state = state
        self._ground = Ground(layout, list(state.datasets))
        self._reserve_free = reserve_free
        self._complaints = complaints
        self._feed = feed
        self._measured = 0
        self._ahead = 0  # announced since then

    def look(self) -> None:
        """Is everything where it was, and how much is it? A disk that does not say stops ingest."""
        try:
            self._ground.check()
            self._measure(0)
        except DiskError as error:
            self._complaints.refused("disk not measured", "", str(error))
            self._feed(DiskChecked(str(error)))
        else:
            self._complaints.works("disk not measured", "")
            self._feed(DiskChecked())

    def check(self) -> None:
        """DiskError if what lies under cache.dir is not ours to alter."""
        self._ground.check()

    def announce_manifest(self, cost: int) -> None:
        """Counts a lease's manifest before it is written; DiskError if there is no room even for that.

        It may take of the slack, which no shard may: that leases are granted is worth more. So it may where
        the limit was lowered below what is there: a trainer lets go of its set when it has the next.
        """
        self._ground.check()
        if self._ahead + cost > _UNMEASURED:
            self._measure(0)
        ledger = self._state.ledger
        shards = ledger.used - ledger.metadata + ledger.reserved
        free = ledger.ceiling - shards - self._measured - self._ahead - cost - _UNMEASURED
        free -= self.index_room.writing
        if free < 0:
            raise DiskError(
                f"no room for a lease of {cost} bytes: cache.limit ({ledger.limit}) is used up; end "
                f"leases that are no longer needed, or raise cache.limit to {ledger.limit - free}"
            )
        self._ahead += cost

    def _measure(self, ahead: int) -> None:
        layout = self._layout
        # Leases and the catalog must find room even on a disk that shards have filled.
        spare = free_bytes(layout.root) - self._reserve_free() - METADATA_SLACK
        files, free = inodes(layout.root)
        for_shards = float("inf")
        if files:  # some file systems make them as they are needed
            for_shards = (free - min(_INODES_KEPT, files // 16)) // _INODES_A_SHARD
        # The log is emptied now and then, and will be back: its room is nobody else's.
        log = layout.catalog.with_name(layout.catalog.name + "-wal")
        self._measured = metadata_bytes(layout, self._state.datasets)
        self._ahead = ahead
        coming = ahead + self.index_room.ahead + max(0, CHECKPOINT_BYTES - allocated(log))
        self._feed(MetadataMeasured(self._measured, spare, for_shards, coming))


def metadata_bytes(layout: Layout, datasets: Container[str]) -> int:
    """Blocks of everything under cache.dir but the shards of `datasets` and temporary files."""
    with refusing(f"cannot measure {layout.root}"):
        total = sum(map(_own, (layout.root, layout.shards, layout.tmp)))
        for entry in layout.root.iterdir():
            if entry not in (layout.shards, layout.tmp):
                total += allocated(entry)
        for entry in layout.shards.iterdir():
            total += _own(entry) if entry.name in datasets else allocated(entry)
    return total


def _own(path: Path) -> int:
    return path.stat().st_blocks * 512
