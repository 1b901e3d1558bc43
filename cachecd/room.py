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
        return self._share(dataset, self.ledger.room)

    def excess(self, dataset: DatasetState) -> int:
        """What this dataset holds beyond its share, since a limit was lowered or another dataset's
        part grew; how full the file system is does not matter."""
        return max(0, -self._share(dataset, self.ledger.below_limit))

    def capacity(self, dataset: DatasetState) -> int:
        """What this dataset can hold in all, as things are."""
        return self.ledger.of(dataset.rules.name) + max(0, self.space(dataset))

    def fits(self, dataset: DatasetState, shards: int = 1) -> bool:
        """Whether there is room for so many more shards."""
        return self.space(dataset) >= shards * self.ledger.footprint

    def missing(self, dataset: DatasetState, of_all: bool = False) -> int:
        """What it lacks to go on beside the shards that are being made; 0 if it has nothing to make, or may
        not. `of_all`: what it lacks of the room that all share, as far as its own limit lets it."""
        if not dataset.takes_more:
            return 0
        shards, footprint = 1 + len(dataset.making), self.ledger.footprint
        if not of_all:
            return max(0, shards * footprint - self.space(dataset))
        own = self._own(dataset)
        shards = min(shards, max(0, own) // footprint) if own is not None else shards
        return max(0, shards * footprint - self._shared(dataset, self.ledger.room)) if shards else 0

    def stuck(self, dataset: DatasetState) -> bool:
        """Whether the dataset can hold no more than it does: no room, and none on its way."""
        return (
            not self.fits(dataset)
            and dataset.has_work
            and not any(d.making for d in self.datasets.values())
            and not any(d.live.unsettled for d in self.datasets.values())
        )

    def kept_for_leases(self) -> bool:
        """Whether there is room that only waits for leases to end."""
        return any(d.live.any_doomed for d in self.datasets.values())

    def shards_for(self, dataset: DatasetState, data: int) -> int:
        """How many shards so many data bytes take: shards are rarely full to the last byte, so go by
        those that are there."""
        there = dataset.live.served()
        typical = there.data_bytes // there.shards if there.shards else self.shard_size
        return -(-max(data, 0) // max(typical, 1))

    def _share(self, dataset: DatasetState, room: int) -> int:
        shared, own = self._shared(dataset, room), self._own(dataset)
        return shared if own is None else min(shared, own)

    def _own(self, dataset: DatasetState) -> int | None:
        """What its own limit leaves it, None if it has none."""
        limit = dataset.rules.limit
        return None if limit is None else limit - self.ledger.of(dataset.rules.name)

    def _shared(self, dataset: DatasetState, room: int) -> int:
        # `first` of every dataset comes before what else this one, or another, may have.
        beyond_first = dataset.data() >= dataset.rules.first
        for other in self.datasets.values():
            if other is not dataset and not other.whole:
                room -= max(0, self._kept_back(other, beyond_first))
        return room

    def _kept_back(self, dataset: DatasetState, all_of_it: bool) -> int:
        """What this dataset lacks: shards that failed, and `first`; `all_of_it`: also the rest of a
        pinned one, or what it takes to replace a shard within `refresh` while `first` stays."""
        footprint, rules = self.ledger.footprint, dataset.rules
        if rules.pin:
            missing = dataset.plan.estimated_bytes - dataset.data() if all_of_it else 0
            return self.shards_for(dataset, missing) * footprint
        missing = self.shards_for(dataset, rules.first - dataset.data())
        lacks = max(missing, len(dataset.retry)) * footprint
        if all_of_it:
            first = self.shards_for(dataset, rules.first) * footprint
            rotating = max(first, int(footprint / rules.refresh)) + footprint
            lacks = max(lacks, rotating - self.ledger.of(rules.name))
        own = self._own(dataset)
        return lacks if own is None else min(lacks, own)
