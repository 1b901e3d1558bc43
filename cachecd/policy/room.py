"""The bytes of the cache: used, reserved and free bytes under the limit, and who gets free bytes. Pure.

All figures are allocated bytes. A footprint is reserved before a shard is granted. So used and reserved
bytes never exceed the limit; after the limit was lowered, they never grow above it.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from cachecd.policy.dataset import Dataset
from cachecd.policy.events import Measured
from cachecd.policy.generation import Generation
from cachecd.policy.shares import Claim, first_bytes, need, shares
from cachecd.policy.values import GenerationId


def footprint(shard_size: int, block: int) -> int:
    """The most that a shard and its sidecar occupy: both round up to a block, and a fragmented file may
    need a block for its extents."""
    return -(-shard_size // block) * block + 3 * block


class Room:
    """The limit, and all bytes that count under it. `by_id` has all generations, newest first."""

    def __init__(self) -> None:
        self.limit = 0
        self.datasets: dict[str, Dataset] = {}
        self.by_id: dict[GenerationId, Generation] = {}
        self.measured = Measured(0)
        self._written = 0  # bytes of other files than shards since the last measurement
        self._held_then = 0

    @property
    def generations(self) -> Collection[Generation]:
        return self.by_id.values()

    @property
    def others(self) -> list[Generation]:
        """The generations that are not configured, oldest first."""
        return [each for each in reversed(self.by_id.values()) if not each.is_configured]

    # --- under the limit

    @property
    def _held(self) -> int:
        return sum(generation.held for generation in self.generations)

    @property
    def used(self) -> int:
        return self._held + self.measured.other + max(self.measured.slack, self._written)

    def measure(self, event: Measured) -> None:
        self.measured, self._written = event, 0
        self._held_then = sum(each.table.total for each in self.generations)

    @property
    def spare(self) -> float:
        """Free bytes of the file system, less the bytes that shards took since the measurement."""
        # A reservation that is on disk already counts twice, which errs on the safe side.
        return self.measured.spare - (self._held - self._held_then) - self._written

    def fits(self, size: int) -> bool:
        """Whether `size` bytes more may be reserved."""
        files = self.measured.spare_files >= 2
        return files and self.used + size <= self.limit and size <= self.spare

    def write(self, size: int, in_slack: bool) -> bool:
        """Reserves room for another file than a shard. `in_slack`: room in the slack will do, which is
        reserved under any limit."""
        taken = self.used - max(self.measured.slack, self._written) + self._written
        # Under a limit that was lowered a job takes its next set before it gives up the last.
        may = taken + size <= self.limit or taken > self.limit
        in_slack = in_slack and may and self._written + size <= self.measured.slack
        granted = in_slack or self.fits(size + self._kept)
        self._written += size if granted else 0
        return granted

    @property
    def _kept(self) -> int:
        """One footprint of each dataset is kept back to make a shard again."""
        return sum(dataset.generation.footprint for dataset in self.datasets.values())

    # --- shares

    def _claim(self, dataset: Dataset, endless: bool) -> Claim:
        gen, rules = dataset.generation, dataset.rules
        whole, listed = gen.is_whole, gen.estimate if gen.completed else math.inf
        most = need(gen.held, whole, listed, gen.footprint, len(gen.streams))
        most = math.inf if endless else most
        return Claim(rules.name, rules.first, gen.footprint, most, rules.limit, rules.pin, whole)

    def shares(self, endless: Dataset | None = None) -> dict[str, int]:
        """The share of each dataset; `endless` claims as if its need had no bound."""
        claims = [self._claim(each, each is endless) for each in self.datasets.values()]
        other = self.measured.other + self.measured.slack
        return shares(self.limit - other, claims)

    def share(self, dataset: Dataset) -> int:
        return self.shares()[dataset.rules.name]

    def uncapped_share(self, dataset: Dataset) -> int:
        """The share of one dataset, without its cap."""
        return self.shares(endless=dataset)[dataset.rules.name]

    def first(self, dataset: Dataset) -> int:
        """Returns the part of `grow.first` that counts."""
        return first_bytes(dataset.rules.first, self.share(dataset))

    def _fills_share(self, dataset: Dataset) -> bool:
        gen = dataset.generation
        return gen.held + 2 * gen.footprint > self.share(dataset)

    def is_full(self, dataset: Dataset) -> bool:
        """Whether a dataset has no room for one more shard: in its share, under the limit, or on the
        file system."""
        fits = self.fits(dataset.generation.footprint + self._kept)
        return not fits or self._fills_share(dataset)

    def owes_room(self, dataset: Dataset) -> bool:
        """Whether a dataset holds more than its share less one footprint, and another dataset finds no room
        in its own share."""
        if dataset.generation.held + dataset.generation.footprint <= self.share(dataset):
            return False
        others = (each for each in self.datasets.values() if each is not dataset)
        return any(self.is_full(each) and not self._fills_share(each) for each in others)

    def make_room(self, dataset: Dataset) -> bool:
        """Returns whether a dataset has room for one more shard. If its share has room but the limit has
        none, others retire shards: first generations that are not configured, then datasets without a held
        lease, down to their share less one footprint."""
        if not self.is_full(dataset):
            return True
        if self._fills_share(dataset):
            return False
        size = dataset.generation.footprint + self._kept
        short = max(self.used + size - self.limit, size - self.spare)
        givers = [
            each
            for each in self.datasets.values()
            if each is not dataset and not (each.leases or each.rules.pin)
        ]
        # Shards that are retired and not unlinked yet count as given.
        for gen in [*self.others, *(each.generation for each in givers)]:
            short -= gen.table.total - gen.table.live_bytes
        for gen in self.others:
            short -= gen.retire_oldest(short)
        shares = self.shares()
        for each in givers:
            gen = each.generation
            excess = gen.table.live_bytes + gen.reserved + gen.footprint - shares[each.rules.name]
            short -= gen.retire_oldest(min(short, excess))
        return False
