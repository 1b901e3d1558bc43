"""Counts used, reserved and free bytes under the limit, and decides which dataset gets free bytes. Pure.

All figures are allocated bytes. A footprint is reserved before a shard is granted. So used and reserved
bytes never exceed the limit; after the limit was lowered, they never grow above it.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from cachecd.policy.dataset import Dataset
from cachecd.policy.events import Measured
from cachecd.policy.generation import Generation
from cachecd.policy.rotation import floor_bytes
from cachecd.policy.shares import Claim, first_bytes, need, shares
from cachecd.policy.values import GenerationId


def footprint(shard_size: int, block: int) -> int:
    """Returns the maximum of bytes that a shard and its sidecar occupy. Each file is rounded up to a
    block, and a fragmented file may need a block for its extents."""
    return -(-shard_size // block) * block + 3 * block


class Room:
    """The limit, and all bytes that count towards it. `by_id` has all generations, newest first."""

    def __init__(self) -> None:
        self.limit = 0
        self.datasets: dict[str, Dataset] = {}
        self.by_id: dict[GenerationId, Generation] = {}
        self.measured = Measured(0)
        self.pages: dict[GenerationId, int] = {}  # bytes that wait for room, by listing
        self._writing: dict[GenerationId, int] = {}  # bytes of the page that is being written
        # Bytes of pages that were written since the last measurement began, and in the period before. The
        # measurement may not have counted them.
        self._paged = self._paged_before = 0
        self._manifests = 0  # bytes of manifests since the last measurement
        self._occupied_then = 0

    @property
    def generations(self) -> Collection[Generation]:
        return self.by_id.values()

    @property
    def others(self) -> list[Generation]:
        """The generations that are not configured, in the order in which they are retired for space:
        first generations that cannot be read, then the oldest."""
        return [each for each in reversed(self.by_id.values()) if not each.is_configured]

    # --- under the limit

    @property
    def _occupied(self) -> int:
        return sum(generation.occupied for generation in self.generations)

    @property
    def used(self) -> int:
        other = self.measured.other + self.measured.twice
        return self._occupied + other + max(self.measured.slack, self._written)

    @property
    def _written(self) -> int:
        """Bytes of manifests and pages that the last measurement may not have counted."""
        pages = self._paged + self._paged_before + sum(self._writing.values())
        return self._manifests + pages

    def measure(self, event: Measured) -> None:
        self.measured, self._manifests = event, 0
        self._paged_before, self._paged = self._paged, 0
        self._occupied_then = sum(each.table.total for each in self.generations)

    @property
    def spare(self) -> float:
        """Free bytes of the file system, minus the bytes that shards took since the measurement."""
        # A reservation that is already on disk counts twice, which is safe.
        return self.measured.spare - (self._occupied - self._occupied_then) - self._written

    def fits(self, size: int) -> bool:
        """Whether `size` bytes more may be reserved."""
        return self.measured.spare_files >= 2 and self._short(size) <= 0

    def _short(self, size: int) -> float:
        """Returns the bytes that must be freed before `size` more bytes fit."""
        return max(self.used + size - self.limit, size - self.spare)

    def next_version(self, gen: Generation, number: int) -> tuple[int, bool] | None:
        """Returns the bytes that the next version of a quarantined shard needs, and whether the damaged
        file is removed first. Returns None if there is no room.

        A local copy uses the room that is kept back. So does a version whose damaged file is removed
        first. If the limit was lowered, such versions need no free room, but are made one at a time.
        """
        facts, is_local = gen.table.facts(number), not gen.repairs[number].damaged
        is_leased = gen.table.is_leased(number, facts.version)
        drop = not (is_local or is_leased)
        freed = facts.data_bytes if drop and facts.allocated >= facts.data_bytes else 0
        size = max(0, gen.footprint - freed)
        if not self.fits(size):
            under_way = (each.remaking or each.table.unlinks for each in self.generations)
            may = (is_local or drop) and self.used > self.limit and size <= self.spare
            # A set needs at least one shard: otherwise a job that holds its last set would wait for
            # itself.
            is_first = not gen.table.select().records
            if not (may and (is_first or not is_leased)) or any(under_way):
                return None
        return size, drop

    def write_manifest(self, size: int) -> bool:
        """Reserves room for a manifest, from the slack or from free bytes. Returns whether there is
        room."""
        taken = self.used - max(self.measured.slack, self._written) + self._written
        # If the limit was lowered, a job gets its next set before it releases the last.
        may = taken + size <= self.limit or taken > self.limit
        granted = (may and self._written + size <= self.measured.slack) or self.fits(size)
        self._manifests += size if granted else 0
        return granted

    def write_page(self, dataset: Dataset, size: int, grown: int, must_fit: bool) -> bool:
        """Reserves at most `size` bytes for a page of a dataset's listing. Returns whether there is room.
        `grown`: the bytes that the previous page used. With `must_fit`, shards get no room until the page
        has room, and the daemon calls this method until it returns True. Other datasets retire shards as
        in `make_room`. The dataset itself retires shards down to the floor of rotation: at once if none
        of its leases is held, otherwise at the next boundary."""
        name = dataset.generation.id
        self.pages.pop(name, None)
        if self._writing.pop(name, 0):
            self._paged += grown
        granted = self.fits(size + self.kept)
        if granted:
            self._writing[name] = size
        elif must_fit:
            self._retire_others(dataset, size)
            self.pages[name] = size
            if not (dataset.leases or dataset.rules.pin):
                rules, live = dataset.rules, dataset.generation.table.live_bytes
                floor = floor_bytes(self.first(dataset), rules.refresh, self.share(dataset))
                dataset.generation.retire_oldest(
                    min(self.page_lacks(dataset), live - floor), "a page of the listing needs room"
                )
        return granted

    def page_written(self, name: GenerationId) -> None:
        """Notes that the last page with reserved room is written."""
        self._paged += self._writing.pop(name, 0)

    def page_lacks(self, dataset: Dataset) -> float:
        """Returns the bytes to retire for a waiting page of a dataset's listing. Returns 0 if no page
        waits, if enough bytes are being retired, or if listings occupy half of the limit."""
        size = self.pages.get(dataset.generation.id)
        if size is None or 2 * self.measured.other > self.limit:
            return 0
        retired = sum(gen.table.total - gen.table.live_bytes for gen in self.generations)
        return max(0, self._short(size + self.kept) - retired)

    @property
    def kept(self) -> int:
        """The room that is kept back for next versions: one footprint for each dataset."""
        return sum(dataset.generation.footprint for dataset in self.datasets.values())

    # --- shares

    def _claim(self, dataset: Dataset, endless: bool) -> Claim:
        gen, rules = dataset.generation, dataset.rules
        whole, listed = gen.is_whole, gen.estimate if gen.completed else math.inf
        most = need(gen.occupied, whole, listed, gen.footprint, len(gen.streams))
        most = math.inf if endless else most
        return Claim(rules.name, rules.first, gen.footprint, most, rules.limit, rules.pin, whole)

    def shares(self, endless: Dataset | None = None) -> dict[str, int]:
        """Returns the share of each dataset. Assumes that the dataset `endless` can use any share."""
        claims = [self._claim(each, each is endless) for each in self.datasets.values()]
        other = self.measured.other + self.measured.twice + self.measured.slack
        return shares(self.limit - other, claims)

    def share(self, dataset: Dataset) -> int:
        return self.shares()[dataset.rules.name]

    def uncapped_share(self, dataset: Dataset) -> int:
        """Returns the share of one dataset, without the cap by its listed size."""
        return self.shares(endless=dataset)[dataset.rules.name]

    def first(self, dataset: Dataset) -> int:
        """Returns the part of `grow.first` that counts."""
        return first_bytes(dataset.rules.first, self.share(dataset))

    def _fills_share(self, dataset: Dataset) -> bool:
        gen = dataset.generation
        return gen.occupied + 2 * gen.footprint > self.share(dataset)

    def is_full(self, dataset: Dataset) -> bool:
        """Whether one more shard of the dataset has no room: in its share, under the limit, or on the
        file system."""
        pages = sum(self.pages.values())
        fits = self.fits(dataset.generation.footprint + self.kept + pages)
        return not fits or self._fills_share(dataset)

    def owes_room(self, dataset: Dataset) -> bool:
        """Whether a dataset occupies more than its share minus one footprint, while another dataset finds
        no room within its own share."""
        if dataset.generation.occupied + dataset.generation.footprint <= self.share(dataset):
            return False
        others = (each for each in self.datasets.values() if each is not dataset)
        return any(self.is_full(each) and not self._fills_share(each) for each in others)

    def make_room(self, dataset: Dataset) -> bool:
        """Returns whether a dataset has room for one more shard. If its share has room but the limit has
        none, retires other shards: first shards of generations that are not configured. Then datasets
        without a lease retire shards, down to their share minus one footprint."""
        if not self.is_full(dataset):
            return True
        if not self._fills_share(dataset):
            self._retire_others(dataset, dataset.generation.footprint)
        return False

    def _retire_others(self, dataset: Dataset, size: int) -> None:
        """Retires shards of other datasets until `size` bytes fit next to the room that is kept back."""
        short = self._short(size + self.kept + sum(self.pages.values()))
        needs = f"dataset {dataset.rules.name} needs room"
        givers = [
            each
            for each in self.datasets.values()
            if each is not dataset and not (each.leases or each.rules.pin)
        ]
        # Counts shards that are retired and not unlinked yet.
        for gen in [*self.others, *(each.generation for each in givers)]:
            short -= gen.table.total - gen.table.live_bytes
        for gen in self.others:
            short -= gen.retire_oldest(short, f"{needs}, and its generation is not configured")
        shares = self.shares()
        for each in givers:
            gen = each.generation
            excess = gen.table.live_bytes + gen.reserved + gen.footprint - shares[each.rules.name]
            short -= gen.retire_oldest(
                min(short, excess), f"{needs}, and this one is above its share"
            )
