"""What of an epoch is read by others than its loaders here."""

from __future__ import annotations

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


class Stretch:
    """What is given from a reading on until it is stopped."""

    def __init__(self, read: Callable[[], Given], begin: Given | None = None) -> None:
        """`read` says what was given in all, and never fails."""
        self._read = read
        self._begin = begin or Given()
        self._end: Given | None = None

    @property
    def given(self) -> Given:
        return (self._end or self._read()).since(self._begin)

    def stop(self) -> Given:
        """The reading at which it ended, where the next one begins. Idempotent."""
        if self._end is None:
            self._end = self._read()
        return self._end


@dataclass(frozen=True)
class Lent:
    """So many steps, each of `batch_size` records for every one of `world` ranks, are `to` be read by
    somebody; `stretch` says how many were, where that is known. `leases`: who waits there waits for the
    set as well."""

    to: str
    steps: int
    batch_size: int
    world: int
    stretch: Stretch | None = None
    leases: bool = False

    @property
    def step(self) -> int:
        """Records of a step, over all ranks."""
        return self.batch_size * self.world

    def reads(self, length: int) -> int:
        """Records over all ranks, of a set that has so many; the last step of a whole pass may be
        padded."""
        reads = self.steps * self.step
        return length if 0 <= reads - length < self.step else reads
