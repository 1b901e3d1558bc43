"""Which shard is started next, and when: workers, room and work brought together. Pure.

Pinned datasets come first; until they are whole the others stay at `first`. A shard that failed is
made again, under its own number, before a new one is begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cachecd.dataset import DatasetState, Making
from cachecd.events import Command, SavePlan, StartShard
from cachecd.ledger import Ledger
from cachecd.model import Assignment, Outcome, Shard, UnitSlice
from cachecd.pause import Pause
from cachecd.room import Room


@dataclass(slots=True)
class Ingest:
    """Starts as many shards as there are workers, room and work for."""

    ledger: Ledger
    datasets: dict[str, DatasetState]
    room: Room
    disk: Pause
    shard_size: int
    workers: int
    turns: int = 0

    def schedule(self, now: float, begins: bool, out: list[Command]) -> None:
        """Appends a StartShard, its room reserved, for each shard that is to be begun now, if anything
        `begins` at all."""
        for dataset in self.datasets.values():
            self._forgive(dataset)
        if begins:
            self._start(now, out)

    def _start(self, now: float, out: list[Command]) -> None:
        out += [
            SavePlan(name, again=again)
            for name, dataset in self.datasets.items()
            if (again := dataset.try_again(now))
        ]
        if self.disk.stops(now):
            return
        while sum(len(d.making) for d in self.datasets.values()) < self.workers:
            # Each time: of a shard whose units are all set aside nothing is made, and a set may be whole.
            pins_missing = any(d.rules.pin and not d.whole for d in self.datasets.values())
            waiting = sorted(
                self.datasets.values(),
                key=lambda d: (not d.rules.pin, len(d.making), d.turn),
            )
            if not any(self._start_one(d, pins_missing, now, out) for d in waiting):
                return

    def _forgive(self, dataset: DatasetState) -> None:
        """Room that no shard fits into any more is not a debt."""
        if dataset.debt and (not dataset.has_work or self.room.stuck(dataset)):
            dataset.debt = 0

    def _start_one(
        self, dataset: DatasetState, pins_missing: bool, now: float, out: list[Command]
    ) -> bool:
        due = min((n for n, not_before in dataset.retry.items() if not_before <= now), default=None)
        if due is not None:
            _take_out(dataset, due, out)
            # Every unit of it has been set aside: that takes no room, and nobody is asked for it.
            if not dataset.plan.open[due].units:
                del dataset.retry[due]
                dataset.making[due] = Making()
                out.append(finish(dataset, due, Outcome(0, 0, 0, 0, 0, 0.0)))
                return True
        if not dataset.may_ask(now) or (dataset.making and not dataset.described):
            return False
        if due is not None:
            assignment = dataset.plan.open[due]
            if not self.room.fits(dataset):
                return False
            del dataset.retry[due]
        else:
            found = self._next_assignment(dataset, pins_missing, now)
            if found is None:
                return False
            number = found.shard.number
            _take_out(dataset, number, out)
            assignment = dataset.plan.open[number]
            if not assignment.units:
                dataset.retry[number] = now
                return True
        reserved = self.ledger.reserve(assignment.shard)
        assert reserved, "space was checked above"
        self.turns += 1
        dataset.turn = self.turns
        dataset.making[assignment.shard.number] = Making()
        dataset.rate.begin(now)
        out.append(StartShard(assignment))
        return True

    def _next_assignment(
        self, dataset: DatasetState, pins_missing: bool, now: float
    ) -> Assignment | None:
        rules = dataset.rules
        coming = (len(dataset.making) + len(dataset.retry)) * self.shard_size
        held = dataset.made() if rules.wait else dataset.data()
        # A shard that failed comes before later ones: it must not lose its room to them.
        if not self.room.fits(dataset, 1 + len(dataset.retry)):
            return None
        if dataset.exhausted or held + coming >= dataset.allowed or not dataset.plan.num_units:
            return None
        # By what is there, not by what was made: of that all may have gone.
        if pins_missing and not rules.pin and dataset.data() + coming >= rules.first:
            return None
        return dataset.assign(now)


def _take_out(dataset: DatasetState, number: int, out: list[Command]) -> None:
    """Nothing is fetched that a person has excluded."""
    if asides := dataset.take_out(number):
        out.append(SavePlan(dataset.rules.name, set_aside=asides))


def exclude(dataset: DatasetState, units: tuple[UnitSlice, ...]) -> SavePlan:
    """A person takes these units out."""
    numbers = tuple(u.unit for u in units)
    asides, names = dataset.exclude(units)
    # Again: they may have been set aside for another reason.
    return SavePlan(dataset.rules.name, set_aside=asides, again=numbers, excluded=names)


def finish(
    dataset: DatasetState,
    number: int,
    outcome: Outcome,
    shard: Shard | None = None,
    units: Sequence[int] = (),
) -> SavePlan:
    """Assignment `number` is no longer open: `shard`, which holds `units`, came of it, or nothing."""
    del dataset.making[number]
    outcome = dataset.excluded.out_of(outcome)
    unfinished = {unit.unit for unit in outcome.remainder}
    unfinished |= {aside.unit for aside in outcome.set_aside}
    dataset.contradictions.made(len(set(units) - unfinished), outcome.set_aside)
    parts = dataset.plan.finish(number, outcome, units)
    dataset.exhausted = False
    return SavePlan(dataset.rules.name, number, shard, units, parts, outcome.set_aside)
