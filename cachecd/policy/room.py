"""The bytes of the cache: used, reserved and free bytes under the limit, and who gets free bytes. Pure.

All figures are allocated bytes. A footprint is reserved before a shard is granted. So used and reserved
bytes never exceed the limit; after the limit was lowered, they never grow above it.
"""

from __future__ import annotations

from collections.abc import Iterable

from cachecd.policy import commands as do
from cachecd.policy.dataset import Dataset
from cachecd.policy.events import Measured
from cachecd.policy.generation import Generation
from cachecd.policy.shares import Claim, first_bytes, need, shares


def footprint(shard_size: int, block: int) -> int:
    """The most that a shard and its sidecar occupy: both round up to a block, and a fragmented file may
    need a block for its extents."""
    return -(-shard_size // block) * block + 3 * block


class Room:
    """The limit, and everything that counts under it. `others`: generations that are not configured,
    the oldest of each dataset first."""

    def __init__(self, datasets: dict[str, Dataset]) -> None:
        self.limit = 0
        self.datasets = datasets
        self.others: list[Generation] = []
        self.measured = Measured(0)
        self._written = 0  # since the last measurement, by what is no shard
        self._files_then = 0

    # --- under the limit

    @property
    def generations(self) -> Iterable[Generation]:
        """All generations."""
        return [*(dataset.generation for dataset in self.datasets.values()), *self.others]

    @property
    def used(self) -> int:
        """All bytes that are used or reserved."""
        shards = sum(generation.held for generation in self.generations)
        return shards + self.measured.other + max(self.measured.slack, self._written)

    def measure(self, event: Measured) -> None:
        """Other files than shards were measured."""
        self.measured, self._written = event, 0
        self._files_then = sum(generation.table.total for generation in self.generations)

    @property
    def spare(self) -> float:
        """Free bytes of the file system, less the bytes that shards took since the measurement."""
        # A reservation that is on disk already counts twice, which errs on the safe side.
        grown = sum(generation.held for generation in self.generations) - self._files_then
        return self.measured.spare - grown - self._written

    def fits(self, size: int) -> bool:
        """Whether `size` bytes more may be reserved."""
        files = self.measured.spare_files >= 2
        return files and self.used + size <= self.limit and size <= self.spare

    def write(self, size: int, in_slack: bool) -> bool:
        """Reserves room for another file than a shard. `in_slack`: room in the slack will do, which is
        reserved under any limit."""
        if in_slack and self._written + size <= self.measured.slack:
            self._written += size
            return True
        if self.fits(size + self._kept):
            self._written += size
            return True
        return False

    @property
    def _kept(self) -> int:
        """One footprint of each dataset is kept back to make a shard again."""
        return sum(dataset.generation.footprint for dataset in self.datasets.values())

    # --- shares

    def claim(self, dataset: Dataset, endless: bool = False) -> Claim:
        """The claim of a dataset; `endless`: as if its need had no bound."""
        gen, rules = dataset.generation, dataset.rules
        whole = gen.is_whole
        most = need(
            gen.held, whole, gen.estimate, gen.footprint, len(gen.streams), gen.completed > 0
        )
        most = float("inf") if endless else most
        return Claim(rules.name, rules.first, gen.footprint, most, rules.limit, rules.pin, whole)

    def shares(self, endless: Dataset | None = None) -> dict[str, int]:
        """The share of each dataset; `endless` claims as if it had no end."""
        claims = [self.claim(each, each is endless) for each in self.datasets.values()]
        other = self.measured.other + self.measured.slack
        return shares(self.limit - other, claims)

    def share(self, dataset: Dataset) -> int:
        """The share of one dataset."""
        return self.shares()[dataset.rules.name]

    def first(self, dataset: Dataset) -> int:
        """What counts of `grow.first`."""
        return first_bytes(dataset.rules.first, self.share(dataset))

    def _is_full(self, dataset: Dataset) -> bool:
        gen = dataset.generation
        return gen.held + 2 * gen.footprint > self.share(dataset)

    def is_full(self, dataset: Dataset) -> bool:
        """Whether a dataset has no room for one more shard: in its share, under the limit, or on the
        file system."""
        return self._is_full(dataset) or not self.fits(dataset.generation.footprint + self._kept)

    def make_room(self, dataset: Dataset, out: list[do.Command]) -> bool:
        """Whether a dataset has room for one more shard. If its share has, others retire what lacks: first
        generations that are not configured, then datasets above their share of which no lease is held."""
        if not self.is_full(dataset):
            return True
        if self._is_full(dataset):
            return False
        short = float(self.used + dataset.generation.footprint + self._kept - self.limit)
        short = max(short, dataset.generation.footprint + self._kept - self.spare)
        shares = self.shares()
        others = [each for each in self.datasets.values() if each is not dataset]
        givers = [each for each in others if not (each.leases or each.rules.pin)]
        # Shards that are retired and not unlinked yet count as given.
        for generation in [*self.others, *(each.generation for each in givers)]:
            short -= generation.table.total - generation.table.live_bytes
        for generation in self.others:
            short -= self._retire(generation, short, out)
        for each in givers:
            excess = each.generation.table.live_bytes + each.generation.reserved
            excess -= shares[each.rules.name]
            short -= self._retire(each.generation, min(short, excess), out)
        return False

    def _retire(self, generation: Generation, most: float, out: list[do.Command]) -> int:
        """Retires the oldest shards of a generation until they have `most` bytes; returns their bytes."""
        retired, numbers = 0, []
        for number, allocated in generation.table.live():
            if retired >= most:
                break
            retired += allocated
            numbers.append(number)
        generation.retire(numbers, out)
        return retired
