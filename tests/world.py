"""A world in memory for the policy: carries commands out when told to, and watches the promises.

`World.check` is run after every event. Records are known as (unit, ordinal), so that no record may
be in two live shards at once, and what a lease names is compared with what is really there.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from cachecd import events as ev
from cachecd.dataset import DatasetRules, DatasetState
from cachecd.grant import GRACE
from cachecd.ledger import BLOCK, METADATA_SLACK, Ledger, footprint
from cachecd.model import Assignment, Lease, Outcome, SetAside, Shard, ShardId, UnitSlice
from cachecd.plan import Plan
from cachecd.state import State

SHARD_SIZE = 64 << 10
FOOTPRINT = footprint(SHARD_SIZE)
RECORDS_PER_UNIT = 4


class Units:
    """A listing of units of given sizes."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = np.array(sizes, np.int64)

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def total_bytes(self) -> int:
        return int(self._sizes.sum())

    def sizes(self, numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        return self._sizes[numbers]

    def unit(self, number: int) -> UnitSlice:
        return UnitSlice(number, f"key-{number}", int(self._sizes[number]))

    def append(self, sizes: list[int]) -> None:
        self._sizes = np.append(self._sizes, np.array(sizes, np.int64))


def full(assignment: Assignment) -> Outcome:
    """Everything of the assignment fits, one byte for one."""
    size = sum(
        u.size * (RECORDS_PER_UNIT - u.ordinal) // RECORDS_PER_UNIT for u in assignment.units
    )
    size = min(size, SHARD_SIZE)
    records = sum(RECORDS_PER_UNIT - u.ordinal for u in assignment.units)
    return Outcome(records, size, 0, -(-size // BLOCK) * BLOCK + BLOCK, size, 1.0)


class World:
    """Drives a State and plays the disk, the samplers and the trainers."""

    def __init__(
        self,
        limit: int,
        datasets: dict[DatasetRules, Units],
        workers: int = 2,
        unlisted: frozenset[str] | set[str] = frozenset(),
    ) -> None:
        self.now = 0.0
        self.events: deque[ev.Event] = deque()
        self.state = State(Ledger(METADATA_SLACK + limit, FOOTPRINT), SHARD_SIZE, workers, "b")
        self.making: dict[ShardId, Assignment] = {}
        self.publishing: dict[ShardId, tuple[Outcome, Assignment]] = {}
        self.disk: dict[ShardId, set[tuple[int, int]]] = {}  # shard -> its records
        self.unlinking: list[ShardId] = []
        self.verifying: list[ShardId] = []
        self.manifests: dict[str, Lease] = {}
        self.locks: dict[str, set[int]] = {}
        self.replies: dict[str, ev.Command] = {}
        self.set_aside: list[SetAside] = []
        self.requests = 0
        self.ever: set[str] = set()
        for rules, units in datasets.items():
            plan = Plan(rules.name, rules.generation, units, rules.seed, SHARD_SIZE)
            dataset = DatasetState(rules, plan)
            dataset.described = True
            self.state.add_dataset(dataset)
        for rules, units in datasets.items():
            if rules.name not in unlisted:
                self.feed(ev.Listed(rules.name, len(units), complete=True))

    # --- events

    def feed(self, event: ev.Event) -> None:
        self.events.append(event)
        if len(self.events) > 1:
            return  # whoever feeds the first one handles the rest after it
        while self.events:
            for command in self.state.handle(self.events[0], self.now):
                self._carry_out(command)
            self.events.popleft()
        self.check()

    def _carry_out(self, command: ev.Command) -> None:
        match command:
            case ev.StartShard(assignment):
                assert assignment.units, "an assignment of nothing was started"
                assert assignment.shard not in self.making, "a shard is made twice at once"
                assert assignment.shard not in self.disk, "a shard number was used twice"
                self.making[assignment.shard] = assignment
            case ev.PublishShard(shard, outcome):
                self.publishing[shard] = (outcome, self.making.pop(shard))
            case ev.SavePlan(_, _, _, _, aside):
                self.set_aside += aside
            case ev.UnlinkShard(shard):
                named = [m for m in self.manifests.values() if m.dataset == shard.dataset]
                assert not any(m.names(shard.number) for m in named), "a leased shard was unlinked"
                self.unlinking.append(shard)
            case ev.VerifyShard(shard):
                self.verifying.append(shard)
            case ev.WriteManifest(lease):
                assert lease.id not in self.ever, "a lease name was used twice"
                self.ever.add(lease.id)
                self.manifests[lease.id] = lease
                self.locks[lease.id] = set()
                for number in _numbers(lease):
                    assert ShardId(lease.dataset, number) in self.disk, (
                        "a lease names a shard not on disk"
                    )
            case ev.EndLease(lease):
                if not self.locks[lease]:
                    del self.manifests[lease], self.locks[lease]
                    self.feed(ev.LeaseEnded(lease))
            case ev.MarkShard():
                pass
            case _:
                self.replies[command.request] = command

    # --- what the world can do

    def acquire(
        self, dataset: str, job: str, epoch: int, rank: int = 0, world: int = 1
    ) -> ev.Command:
        self.requests += 1
        request = str(self.requests)
        self.feed(ev.AcquireAsked(request, dataset, job, epoch, rank, world))
        reply = self.replies.pop(request)
        if isinstance(reply, ev.ReplyGranted):
            self.locks[reply.lease].add(rank)
            self.requests += 1
            self.feed(ev.RankHolds(str(self.requests), reply.lease, rank))
        return reply

    def drop(self, lease: str) -> None:
        """All holders of the lease die; the next probe finds out, at the latest after the grace."""
        self.locks[lease].clear()
        self.now += GRACE
        self.feed(ev.LeaseUnheld(lease))

    def make(self, shard: ShardId, outcome: Outcome | None = None) -> None:
        assignment = self.making[shard]
        outcome = outcome or full(assignment)
        if not outcome.records:
            del self.making[shard]
        self.feed(ev.ShardMade(shard, outcome))

    def publish(self, shard: ShardId) -> None:
        outcome, assignment = self.publishing.pop(shard)
        gone = {(r.unit, ordinal) for r in outcome.remainder for ordinal in range(r.ordinal, 4)}
        gone |= {(a.unit, ordinal) for a in outcome.set_aside for ordinal in range(4)}
        records = {
            (u.unit, ordinal)
            for u in assignment.units
            for ordinal in range(u.ordinal, RECORDS_PER_UNIT)
        } - gone
        self.disk[shard] = records
        sealed = Shard(
            shard, assignment.generation, len(records), outcome.data_bytes, outcome.allocated
        )
        self.feed(ev.ShardPublished(sealed, sorted({unit for unit, _ in records})))

    def fail(self, shard: ShardId, cause: str, unit: int | None = None) -> None:
        self.making.pop(shard, None)
        self.publishing.pop(shard, None)
        self.feed(ev.ShardFailed(shard, cause, "it failed", unit))

    def unlink(self, shard: ShardId) -> None:
        self.unlinking.remove(shard)
        records = self.disk.pop(shard)
        self.feed(ev.ShardUnlinked(shard, sorted({unit for unit, _ in records})))

    def verified(self, shard: ShardId, sound: bool) -> None:
        self.verifying.remove(shard)
        self.feed(ev.ShardVerified(shard, sound, self.units(shard)))

    def units(self, shard: ShardId) -> list[int]:
        return sorted({unit for unit, _ in self.disk[shard]})

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.feed(ev.Tick())

    def settle(self, *, rounds: int = 10_000) -> None:
        """The world does all it was asked to, without a fault, until nothing is left to do."""
        for _ in range(rounds):
            if self.unlinking:
                self.unlink(self.unlinking[0])
            elif self.verifying:
                self.verified(self.verifying[0], sound=True)
            elif self.publishing:
                self.publish(min(self.publishing))
            elif self.making:
                self.make(min(self.making))
            else:
                return
        raise AssertionError("the policy never comes to rest")

    # --- the promises

    def check(self) -> None:
        state = self.state
        ledger = state.ledger
        assert ledger.used + ledger.reserved <= ledger.limit, "the limit is exceeded"
        reserved = {s for s in (*self.making, *self.publishing) if ledger.is_reserved(s)}
        assert ledger.reserved == len(reserved) * FOOTPRINT, "a reservation without a shard"
        for name, dataset in state.datasets.items():
            most = dataset.rules.refresh * ledger.limit
            assert dataset.debt <= most, "more is retired and not refilled than refresh allows"
            seen: set[tuple[int, int]] = set()
            for shard, records in self.disk.items():
                if shard.dataset == name and dataset.live[shard.number].served:
                    assert not seen & records, "a record is in two live shards"
                    seen |= records


def _numbers(lease: Lease) -> list[int]:
    return [n for first, last in lease.shards for n in range(first, last + 1) if lease.names(n)]


# --- one dataset, as most tests want it

UNIT = 16 << 10  # three of these, with their overhead, make a shard


def train(**changes) -> DatasetRules:
    return DatasetRules("train", "1-a", **{"first": SHARD_SIZE, **changes})


def world(shards: int = 8, units: int = 1000, workers: int = 2, **rules) -> World:
    return World(shards * FOOTPRINT, {train(**rules): Units([UNIT] * units)}, workers)


def granted(reply: ev.Command) -> str:
    assert isinstance(reply, ev.ReplyGranted), reply
    return reply.lease


def numbers(w: World, lease: str) -> list[int]:
    return [n for a, b in w.manifests[lease].shards for n in range(a, b + 1)]
