"""The reference model of the policy, watching one world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachecd.ledger import METADATA_SLACK
from cachecd.parts import part_of
from tests.policy_model import Model, Records
from tests.units import FOOTPRINT, RECORDS_PER_UNIT

if TYPE_CHECKING:
    from tests.world import World


class Watch(Model):
    """The model, with the world's listings as the sources."""

    def __init__(self, world: World) -> None:
        super().__init__(FOOTPRINT, world.limit, METADATA_SLACK)
        self._world = world

    def source(self, name: str) -> Records | None:
        if name not in self._world.listed:
            return None
        units = set(range(len(self._world.sources[name]))) - self._world.gone.get(name, set())
        return {record for unit in units for record in self.all_of(unit)}

    def full(self, name: str) -> bool:
        dataset = self._world.state.datasets.get(name)
        return dataset is not None and not self._world.state._room.fits(dataset)

    def beyond(self, name: str) -> int:
        dataset = self._world.state.datasets.get(name)
        return 0 if dataset is None else self._world.state._room.excess(dataset)

    def leasable(self, name: str) -> str:
        dataset = self._world.state.datasets[name]
        return dataset.leasable or dataset.rules.generation

    def why(self, name: str, missing: Records) -> str:
        dataset, units = self._world.state.datasets[name], sorted({unit for unit, _ in missing})
        plan, account = dataset.plan, self.of[name]
        told = {
            "missing": sorted(missing),
            "held": plan.partly_held(units),
            "aside": [unit for unit in units if plan.aside([unit])[0]],
            "left over": [part_of(u) for u in plan.left_over if u.unit in units],
            "in shards": {n: s.records & missing for n, s in account.shards.items()},
            "open": {n: [part_of(u) for u in a.units] for n, a in plan.open.items()},
            "making": sorted(dataset.making),
            "retry": dataset.retry,
            "allowed": dataset.allowed,
            "exhausted": dataset.exhausted,
            "has work": dataset.has_work,
            "lost": account.lost,
            "torn": account.torn,
        }
        return "; ".join(f"{what}: {found}" for what, found in told.items())

    def all_of(self, unit: int) -> Records:
        return {(unit, ordinal) for ordinal in range(RECORDS_PER_UNIT)}
