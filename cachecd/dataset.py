"""One dataset's shards, growth and rotation: the figures that the policy decides by. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from cachecd.model import Lease, Outcome, SetAside, Shard
from cachecd.pause import LONGEST, Pause
from cachecd.plan import Plan

_TRIES_PER_UNIT = 2


@dataclass(frozen=True, slots=True)
class DatasetRules:
    """What the configuration says of one dataset, in bytes."""

    name: str
    generation: str
    first: int
    per_epoch: int | None = None
    wait: bool = False
    refresh: float = 0.25
    pin: bool = False
    limit: int | None = None
    seed: int = 0


@dataclass(slots=True)
class LiveShard:
    """A shard on disk; *served* until it is retired or barred, kept while a lease names it."""

    shard: Shard
    retired: bool = False
    barred: bool = False
    verifying: bool = False
    unlinking: bool = False
    leased: bool = False  # some lease has named it: it is not fetched in vain
    released: bool = False  # the plan no longer counts its units as held

    @property
    def served(self) -> bool:
        return not (self.retired or self.barred or self.verifying)

    @property
    def doomed(self) -> bool:
        return (self.retired or self.barred) and not (self.verifying or self.unlinking)


@dataclass(slots=True)
class Making:
    """A shard that is being made, or with its outcome, being published."""

    fetched_bytes: int = 0
    outcome: Outcome | None = None


@dataclass(slots=True)
class DatasetState:
    """Everything the policy knows of one dataset.

    `debt`: allocated bytes that rotation has retired and the sampler has not refilled; never more
    than `refresh` of the capacity. `allowed`: data bytes the dataset may hold before the next epoch
    boundary. `evicted`: data bytes of this generation's shards that are gone.
    """

    rules: DatasetRules
    plan: Plan
    live: dict[int, LiveShard] = field(default_factory=dict)
    making: dict[int, Making] = field(default_factory=dict)
    retry: dict[int, float] = field(default_factory=dict)  # number -> not before
    tries: dict[tuple[int, int | None], int] = field(default_factory=dict)
    described: bool = False
    listed: bool = False
    exhausted: bool = False
    allowed: float = 0
    debt: int = 0
    sealed_since_boundary: int = 0
    last_retired: int = 0
    evicted: int = 0
    evicted_shards: int = 0
    source: Pause = field(default_factory=Pause)
    rate: float = 0  # bytes per second fetched, smoothed
    rate_at: float = 0
    rate_began: float = 0

    def __post_init__(self) -> None:
        self.allowed = self._least_allowed()

    def _least_allowed(self) -> float:
        unbounded = self.rules.pin or (self.rules.per_epoch is None and not self.rules.wait)
        return float("inf") if unbounded else self.rules.first

    def change(self, rules: DatasetRules) -> None:
        """New sizes while running; what is cached stays allowed."""
        self.rules = rules
        self.allowed = max(self._least_allowed(), self.data())

    # --- figures

    def data(self, generation: str | None = None) -> int:
        """Data bytes of served shards, of one generation or of the current one."""
        wanted = generation or self.rules.generation
        return sum(
            s.shard.data_bytes
            for s in self.live.values()
            if s.served and s.shard.generation == wanted
        )

    @property
    def whole(self) -> bool:
        """Everything the source has is in live, sound shards, or set aside."""
        return self.listed and not self.has_work and not self.making and self.being_verified is None

    @property
    def being_verified(self) -> int | None:
        """A shard of the current generation that is out of service while its report is looked into."""
        generation = self.rules.generation
        suspect = (
            n for n, s in self.live.items() if s.verifying and s.shard.generation == generation
        )
        return min(suspect, default=None)

    @property
    def has_work(self) -> bool:
        """Whether something could be made if there were room."""
        return self.plan.has_work or bool(self.retry)

    def served(self, generation: str) -> list[LiveShard]:
        """Served shards of a generation, oldest first."""
        return [
            s for _, s in sorted(self.live.items()) if s.served and s.shard.generation == generation
        ]

    # --- which set an epoch gets

    def generation_to_lease(self, needed: int) -> str | None:
        """The newest generation that can be leased: the current one once it is ready, else an old
        one that is still here; None if there is none yet."""
        if self.ready(needed):
            return self.rules.generation
        old = [s.shard for _, s in sorted(self.live.items()) if s.served]
        old = [s for s in old if s.generation != self.rules.generation]
        return old[-1].generation if old and not self.rules.pin else None

    def ready(self, needed: int) -> bool:
        """Whether the current generation can be leased for an epoch that needs `needed` bytes."""
        if self.rules.pin:
            return self.whole and bool(self.served(self.rules.generation))
        have = self._prefix_bytes() + self.evicted if self.rules.wait else self.data()
        return have > 0 and (have >= needed or self.whole)

    def needed(self, epoch: int) -> int:
        """Data bytes that the set of this epoch needs."""
        if self.rules.wait:
            return self.rules.first + epoch * (self.rules.per_epoch or 0)
        return self.rules.first

    def choose(self, epoch: int, generation: str) -> list[Shard]:
        """The shards of an epoch's set, ascending."""
        served = [s.shard for s in self.served(generation)]
        if not self.rules.wait or generation != self.rules.generation:
            return served
        # Exactly the plan's shards for this epoch, however fast the link was.
        chosen: list[Shard] = []
        total = self.evicted
        for shard in self._prefix(served):
            if total >= self.needed(epoch) and chosen:
                break
            chosen.append(shard)
            total += shard.data_bytes
        return chosen

    def allow_after(self, lease: Lease) -> None:
        """Lets the dataset grow by what the epoch of this lease may add to its set."""
        if self.rules.per_epoch is not None:
            after = lease.num_bytes + self.rules.per_epoch
            if self.rules.wait:
                after = self.needed(lease.epoch + 1)
            self.allowed = max(self.allowed, after)

    def _prefix(self, served: list[Shard]) -> list[Shard]:
        """Those before the first number that is still being made: the plan's order has no gap."""
        suspect = self.being_verified
        open_ones = [*self.making, *self.retry, *([] if suspect is None else [suspect])]
        unfinished = min(open_ones, default=None)
        return [s for s in served if unfinished is None or s.id.number < unfinished]

    def _prefix_bytes(self) -> int:
        served = [s.shard for s in self.served(self.rules.generation)]
        return sum(s.data_bytes for s in self._prefix(served))

    # --- rotation

    def to_retire(
        self, capacity: int, at_limit: bool, floor: int, over: bool = False
    ) -> list[LiveShard]:
        """Which shards an epoch boundary retires, oldest first.

        At the limit only, and only while there is something to put in their place; together with
        what is not refilled yet at most `refresh` of `capacity`; no more than the link refilled
        since the last boundary, or twice the last time's if it refilled that to the end; none that
        no lease has ever named; and never so many that less than `floor` data bytes stay. `over`: the
        limit was lowered below what is there, so there must be less whether or not more could come.
        """
        if self.rules.pin or not at_limit or not (self.has_work or over):
            return []
        quota = int(self.rules.refresh * capacity) - self.debt
        if not over:
            # No more than what could come in its place, and the rest of a shard.
            most = max((s.shard.allocated for s in self.live.values()), default=0)
            quota = min(quota, self.plan.missing_bytes + most)
        candidates = [s for _, s in sorted(self.live.items()) if s.served]
        proven = self.sealed_since_boundary
        if self.debt == 0:
            # All caught up: the link may do more than it was asked for; one shard at least, since a
            # cache at its limit has nothing else to measure the link by.
            smallest = candidates[0].shard.allocated if candidates else 0
            proven = max(proven, 2 * self.last_retired, smallest)
        quota = min(quota, proven)
        stays = sum(s.shard.data_bytes for s in candidates)
        chosen: list[LiveShard] = []
        for live in candidates[:-1]:
            quota -= live.shard.allocated
            stays -= live.shard.data_bytes
            if quota < 0 or stays < floor or not live.leased:
                break
            chosen.append(live)
        return chosen

    def superseded(self) -> list[LiveShard]:
        """Served shards of other generations than the current one."""
        return [
            s
            for _, s in sorted(self.live.items())
            if s.served and s.shard.generation != self.rules.generation
        ]

    # --- the link

    def fetched(self, amount: int, now: float) -> None:
        """Updates the smoothed rate (time constant 5 s) with bytes that just arrived."""
        if not self.rate_began:
            self.rate_began = self.rate_at = now
        keep = 0.5 ** ((now - self.rate_at) / 5.0)
        self.rate = self.rate * keep + amount * (0.6931 / 5.0)
        self.rate_at = now

    def rate_now(self, now: float) -> float:
        if not self.rate_began or now <= self.rate_began:
            return 0.0
        # A young average has not seen enough to be divided by its whole weight.
        seen = 1.0 - 0.5 ** ((now - self.rate_began) / 5.0)
        return float(self.rate * 0.5 ** ((now - self.rate_at) / 5.0) / seen)

    def lost_worker(
        self, number: int, unit: int | None, reason: str, now: float
    ) -> SetAside | None:
        """A worker died on shard `number`, while it worked on `unit`: the shard is made again after a
        while; a unit on which two died is taken out of it and returned."""
        tries = self.tries[number, unit] = self.tries.get((number, unit), 0) + 1
        self.source.reason = reason
        self.retry[number] = now + min(0.25 * 2 ** min(tries, 10), LONGEST)
        if unit is None or tries < _TRIES_PER_UNIT:
            return None
        key = next(u.key for u in self.plan.open[number].units if u.unit == unit)
        aside = SetAside(unit, key, reason)
        self.plan.without(number, aside)
        self.retry[number] = now
        return aside
