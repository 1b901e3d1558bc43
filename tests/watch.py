"""The reference model of the policy, watching one world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachecd.ledger import METADATA_SLACK
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
        count = len(self._world.sources[name])
        return {record for unit in range(count) for record in self.all_of(unit)}

    def full(self, name: str) -> bool:
        dataset = self._world.state.datasets.get(name)
        return dataset is not None and not self._world.state._room.fits(dataset)

    def all_of(self, unit: int) -> Records:
        return {(unit, ordinal) for ordinal in range(RECORDS_PER_UNIT)}
