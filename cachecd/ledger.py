"""The cache's bytes: what is used, what is reserved, what room is left. Pure; no I/O, no clock.

All figures are allocated bytes (blocks of the file system), as `du` counts them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cachecd.model import ShardId

BLOCK = 4096
# A shard and its sidecar share `shard_size`; each rounds up to a block, and a fragmented file may
# need a block for its extent tree.
_PER_SHARD_OVERHEAD = 3 * BLOCK
# Room for what grows between two measurements: the catalog's write-ahead log (bounded by its
# checkpoints), manifests, directories.
METADATA_SLACK = 1 << 20


def footprint(shard_size: int) -> int:
    """The most that one shard and its sidecar ever occupy, while being made and after."""
    return -(-shard_size // BLOCK) * BLOCK + _PER_SHARD_OVERHEAD


@dataclass(slots=True)
class Ledger:
    """One cache directory's bytes under its limit.

    Invariant: `used + reserved <= ceiling` after every operation that adds to either; `reserve`
    refuses what would break it.
    """

    limit: int
    footprint: int
    metadata: int = METADATA_SLACK
    coming: int = 0  # of the metadata, what is not on disk yet
    # Free on the file system for us, less all that is reserved; and for how many shards it has inodes.
    spare: float = float("inf")
    spare_shards: float = float("inf")
    # Used and reserved since the limit was lowered below that, at the least, else 0; None: not known yet.
    _above: int | None = None
    _reserved: dict[ShardId, int] = field(default_factory=dict)
    _used_by: dict[str, int] = field(default_factory=dict)
    _reserved_by: dict[str, int] = field(default_factory=dict)

    def change(self, limit: int) -> None:
        """Another limit, which may be below what is there."""
        lowered, self.limit = limit < self.limit, limit
        if lowered:
            self._above = self._beyond()

    @property
    def ceiling(self) -> int:
        """What is never exceeded: the limit, or what there was when it was lowered below that, less all
        that has gone since."""
        return max(self.limit, self._above or 0)

    @property
    def used(self) -> int:
        """Allocated by sealed shards and by everything else that is not reserved."""
        return self.metadata + sum(self._used_by.values())

    @property
    def on_disk(self) -> int:
        """What is used now, without the slack kept for what grows between two measurements."""
        return self.used - METADATA_SLACK - self.coming

    @property
    def reserved(self) -> int:
        return sum(self._reserved_by.values())

    @property
    def below_limit(self) -> int:
        """What the limit leaves; negative if it was lowered below what is there."""
        return self.limit - self.used - self.reserved

    @property
    def room(self) -> int:
        """What may still be reserved; negative if less fits than is there."""
        return int(min(self.below_limit, self._on_file_system))

    @property
    def crowded(self) -> bool:
        """Whether it is the file system, and not the limit, that has no room for one more shard."""
        return self._on_file_system < min(self.footprint, self.below_limit)

    @property
    def _on_file_system(self) -> float:
        return self.spare if self.spare_shards >= 1 else min(self.spare, 0)

    def of(self, dataset: str) -> int:
        """Used and reserved by one dataset's shards."""
        return self._used_by.get(dataset, 0) + self._reserved_by.get(dataset, 0)

    def measured(
        self, metadata: int, spare: float, spare_shards: float = float("inf"), coming: int = 0
    ) -> None:
        """Everything but shards and temporary files occupies `metadata` bytes now, and is known to
        take `coming` more; the file system can give us `spare` more, and inodes for so many shards."""
        self.metadata, self.coming = metadata + coming + METADATA_SLACK, coming
        # A worker may not have taken yet what is reserved for it; one that has counts twice until
        # it is done, which errs on the safe side.
        self.spare = spare - self.reserved
        if self._above is None:  # a start may find more than its limit
            self._above = self._beyond()
        self.spare_shards = spare_shards - len(self._reserved)

    def reserve(self, shard: ShardId) -> bool:
        """Reserves one footprint; False, and nothing changed, if the limit would be exceeded."""
        if self.room < self.footprint:
            return False
        self.spare -= self.footprint
        self.spare_shards -= 1
        self._reserved[shard] = self.footprint
        self._add(self._reserved_by, shard.dataset, self.footprint)
        return True

    def cancel(self, shard: ShardId) -> None:
        """Gives the shard's reservation back: nothing of it is on disk."""
        self._give_back(shard)
        self._less()

    def seal(self, shard: ShardId, allocated: int) -> None:
        """Turns the reservation into what the sealed shard really occupies."""
        self._give_back(shard)
        self.spare -= allocated
        self.spare_shards -= 1
        self.adopt(shard.dataset, allocated)
        self._less()

    def adopt(self, dataset: str, allocated: int) -> None:
        """Counts shards found on disk."""
        self._add(self._used_by, dataset, allocated)

    def free(self, dataset: str, allocated: int) -> None:
        """The files of a shard that was sealed or adopted are gone."""
        self._add(self._used_by, dataset, -allocated)
        self._less()

    def is_reserved(self, shard: ShardId) -> bool:
        return shard in self._reserved

    def _give_back(self, shard: ShardId) -> None:
        self.spare += self._reserved[shard]
        self.spare_shards += 1
        self._add(self._reserved_by, shard.dataset, -self._reserved.pop(shard))

    def _beyond(self) -> int:
        """What there is, if the limit leaves no lease any room, else 0: a reload is no reason to write
        more than there was."""
        there = self.used + self.reserved
        return there if self.on_disk + self.reserved > self.limit - METADATA_SLACK // 2 else 0

    def _less(self) -> None:
        if self._above is not None:
            self._above = min(self._above, self.used + self.reserved)

    @staticmethod
    def _add(table: dict[str, int], dataset: str, amount: int) -> None:
        table[dataset] = table.get(dataset, 0) + amount
