"""What an epoch's beginning retires, and when that is removed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cachecd.dataset import DatasetState
from cachecd.events import Command, MarkShards, SavePlan, UnlinkShard
from cachecd.model import ShardId
from cachecd.room import Room
from cachecd.shardtable import Numbers


@dataclass(slots=True)
class Rotation:
    """Shards of all datasets go in their order, each when the last lease that names it ends."""

    datasets: dict[str, DatasetState]
    room: Room

    def boundary(
        self, dataset: DatasetState, generation: str, comes: bool, out: list[Command]
    ) -> None:
        """An epoch begins: retires what newer shards shall replace; `comes`: whether anything may be
        fetched, and so come in its place."""
        rules = dataset.rules
        # Leases never mix generations: older ones are of no use now.
        self._retire(dataset, dataset.live.superseded(generation, rules.generation), out)
        floor = 1 if dataset.preparing or rules.wait else min(rules.first, dataset.data(generation))
        retired = 0
        capacity, excess = self.room.capacity(dataset), self.room.excess(dataset)
        if not self.room.fits(dataset) and (excess > 0 or comes):
            taken = self._taken(dataset)
            chosen = dataset.to_retire(generation, capacity, floor, excess, comes, taken)
            retired = self._retire(dataset, chosen, out)
        dataset.sealed_since_boundary = 0
        if retired:
            dataset.last_retired, dataset.refilled = retired, 0
            out.append(SavePlan(rules.name))

    def make_room(self, dataset: DatasetState, comes: bool, out: list[Command]) -> bool:
        """Whether this one, which waits for room, gets some. What is withheld goes first, of whatever
        dataset; then a pinned one has what others hold beyond their share: nobody may ever ask for their
        next epoch."""
        missing = max(0, self.room.lacks(dataset, True)) + self.room.ledger.footprint
        for other in self.datasets.values():
            if missing > 0 and len(withheld := other.withheld):
                missing -= self._retire(other, other.live.first_of(withheld, missing), out)
                self.unlink_unheld(other, out)
        if missing <= 0:
            return True
        for other in self.datasets.values() if dataset.rules.pin else ():
            generation = other.generation_to_lease(0)
            if other is not dataset and generation and self.room.excess(other) > 0:
                self.boundary(other, generation, comes, out)
                self.unlink_unheld(other, out)
        return not self.room.stuck(dataset)

    def _taken(self, dataset: DatasetState) -> bool:
        """Whether the file system and not the limit is full, and others have what was freed on it last:
        less than that has been sealed since."""
        ledger = self.room.ledger
        refilled = dataset.refilled > max(0, dataset.last_retired - ledger.footprint)
        return ledger.crowded and not refilled

    def _retire(self, dataset: DatasetState, numbers: Numbers, out: list[Command]) -> int:
        """What these shards occupy that from now on no lease names."""
        if not len(numbers):
            return 0
        out.append(MarkShards(dataset.rules.name, tuple(numbers.tolist())))
        return dataset.live.retire(numbers)

    def unlink_unheld(self, dataset: DatasetState, out: list[Command]) -> None:
        """Has what is to go, and no lease names, removed."""
        rules, live = dataset.rules, dataset.live
        if rules.pin:  # what a pinned set of old generation takes, the new one needs
            self._retire(dataset, live.superseded(rules.generation), out)
        out += [UnlinkShard(ShardId(rules.name, number)) for number in live.unlink()]
