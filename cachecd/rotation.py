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
        floor = 1 if dataset.preparing or rules.wait else min(rules.first, dataset.data(generation))
        retired = 0
        capacity, excess = self.room.capacity(dataset), self.room.excess(dataset)
        idle = len(dataset.idle)  # then these make room
        if not (idle or self.room.fits(dataset)) and (excess > 0 or comes):
            taken = self._taken(dataset)
            chosen = dataset.to_retire(generation, capacity, floor, excess, comes, taken)
            retired = self._retire(dataset, chosen, out)
        dataset.sealed_since_boundary = 0
        if retired:
            dataset.last_retired, dataset.refilled = retired, 0
            out.append(SavePlan(rules.name))

    def make_room(self, dataset: DatasetState, comes: bool, out: list[Command]) -> None:
        """This one waits for room. Idle shards go, of whatever dataset, and for a pinned one what others
        hold beyond their share: nobody may ever ask for their next epoch."""
        for other in self.datasets.values():
            generation = other.generation_to_lease(0) if dataset.rules.pin else None
            if other is not dataset and generation and self.room.excess(other) > 0:
                self.boundary(other, generation, comes, out)
            self.unlink_unheld(other, comes, out)

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

    def unlink_unheld(self, dataset: DatasetState, comes: bool, out: list[Command]) -> None:
        """Has what is to go, and no lease names, removed; `comes` as for `boundary`."""
        self._give_way(dataset, comes, out)
        name = dataset.rules.name
        out += [UnlinkShard(ShardId(name, number)) for number in dataset.live.unlink()]

    def _give_way(self, dataset: DatasetState, comes: bool, out: list[Command]) -> None:
        """Idle shards go, the oldest first, as others need their room, and not before: a configuration that
        was a mistake may be mended, and then they are of use again."""
        if not len(idle := dataset.idle):
            return
        missing = self.room.excess(dataset)
        for other in self.datasets.values() if comes else ():
            missing = max(missing, self.room.missing(other, of_all=other is not dataset))
        # What a lease still names makes no room, however long it was retired.
        missing -= sum(each.live.going_allocated for each in self.datasets.values())
        unheld = dataset.live.unheld(idle)
        if missing > 0 and len(unheld):
            missing -= self._retire(dataset, dataset.live.first_of(unheld, missing), out)
        # The rest goes when its leases end, and no more of it than it takes.
        held = dataset.idle if missing > 0 else unheld[:0]
        missing -= sum(each.live.held_allocated for each in self.datasets.values())
        if missing > 0 and len(held):
            self._retire(dataset, dataset.live.first_of(held, missing), out)
