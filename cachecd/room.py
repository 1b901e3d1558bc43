"""How the datasets share the limit: what each may still reserve. Pure.

Every dataset's `first` is kept back for it, pinned datasets fill before all others, and a dataset's
own limit holds within the common one.
"""

from __future__ import annotations

from dataclasses import dataclass

from cachecd.dataset import DatasetState
from cachecd.ledger import Ledger


@dataclass(slots=True)
class Room:
    """The ledger's room, divided; all figures are allocated bytes."""

    ledger: Ledger
    datasets: dict[str, DatasetState]
    shard_size: int

    def space(self, dataset: DatasetState) -> int:
        """What this dataset may still reserve."""
        space = self.ledger.room
        for other in self.datasets.values():
            if other is not dataset:
                space -= max(0, self._kept_back(other) - self.ledger.of(other.rules.name))
        if dataset.rules.limit is not None:
            space = min(space, dataset.rules.limit - self.ledger.of(dataset.rules.name))
        return space

    def capacity(self, dataset: DatasetState) -> int:
        """What this dataset can hold in all, as things are."""
        return self.ledger.of(dataset.rules.name) + max(0, self.space(dataset))

    def fits(self, dataset: DatasetState) -> bool:
        """Whether there is room for one more shard."""
        return self.space(dataset) >= self.ledger.footprint

    def stuck(self, dataset: DatasetState) -> bool:
        """Whether the dataset can hold no more than it does: no room, and none on its way."""
        coming = any(s.unlinking or s.retired or s.barred for s in dataset.live.values())
        return (
            dataset.has_work
            and not dataset.making
            and not coming
            and not self.fits(dataset)
        )  # fmt: skip

    def _kept_back(self, dataset: DatasetState) -> int:
        if dataset.rules.pin or dataset.whole:
            return 0
        missing = dataset.rules.first - dataset.data()
        if missing <= 0:
            return self.ledger.of(dataset.rules.name)
        # Shards are rarely full to the last byte: go by those that are there.
        sizes = [live.shard.data_bytes for live in dataset.live.values() if live.served]
        typical = sum(sizes) // len(sizes) if sizes else self.shard_size
        return self.ledger.of(dataset.rules.name) + -(-missing // max(typical, 1)) * (
            self.ledger.footprint
        )
