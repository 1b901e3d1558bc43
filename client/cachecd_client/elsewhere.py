"""What of an epoch is read by others than its loaders here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Given(NamedTuple):
    """What somebody was given so far."""

    steps: int = 0
    records: int = 0  # of this process
    waited: float = 0.0
    elapsed: float = 0.0  # from the first request of each pass on, the waiting included

    def since(self, before: Given) -> Given:
        """What of it came after `before`."""
        return Given(
            self.steps - before.steps,
            self.records - before.records,
            self.waited - before.waited,
            self.elapsed - before.elapsed,
        )


@dataclass(frozen=True)
class Lent:
    """So many steps, each of `batch_size` records for every one of `world` ranks, are `to` be read by
    somebody; `given` says how many were, where that is known."""

    to: str
    steps: int
    batch_size: int
    world: int
    given: Callable[[], Given] | None = None

    @property
    def step(self) -> int:
        """Records of a step, over all ranks."""
        return self.batch_size * self.world

    def frozen(self) -> Lent:
        """The same, with what was given until now."""
        if self.given is None:
            return self
        given = self.given()
        return dataclasses.replace(self, given=lambda: given)

    def reads(self, length: int) -> int:
        """Records over all ranks, of a set that has so many; the last step of a whole pass may be
        padded."""
        reads = self.steps * self.step
        return length if 0 <= reads - length < self.step else reads
