"""A trainer and a link in simulated time: which pictures are trained, and when.

Nothing here sleeps or reads a clock, so a busy machine cannot change a result. `learner.py` learns
afterwards from the recorded batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int32]  # of pictures
BATCH = 256


@dataclass(frozen=True)
class Setting:
    """`link`: pictures that arrive in a second. `compute`: pictures that are trained in a second.
    `horizon`: seconds. A way that downloads first trains for a whole horizon after its download."""

    link: float = 500.0
    compute: float = 2_500.0
    horizon: float = 600.0


@dataclass
class Trainer:
    """Records batches. `now`: the second at which the last batch was trained."""

    setting: Setting
    now: float = 0.0
    steps: list[tuple[float, Numbers]] = field(
        default_factory=list
    )  # (when the step ends, its batch)
    waited: float = 0.0  # for a download before training

    @property
    def end(self) -> float:
        return self.waited + self.setting.horizon

    @property
    def is_over(self) -> bool:
        return self.now + BATCH / self.setting.compute > self.end

    @property
    def samples(self) -> int:
        return sum(len(batch) for _, batch in self.steps)

    def step(self, batch: Numbers, arrival: float = 0.0) -> None:
        """Trains one batch, which cannot start before `arrival`."""
        self.now = max(self.now, arrival) + len(batch) / self.setting.compute
        self.steps.append((self.now, batch.astype(np.int32)))

    def wait(self, until: float) -> None:
        """Starts training at `until`, for a whole horizon."""
        self.now = self.waited = until


def batches(numbers: Numbers, chance: np.random.Generator) -> Iterator[Numbers]:
    """One pass in random order, in whole batches."""
    order = chance.permutation(numbers).astype(np.int32)
    yield from order[: len(order) // BATCH * BATCH].reshape(-1, BATCH)
