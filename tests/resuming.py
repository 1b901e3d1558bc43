"""A world whose runs resume: with a set that is there, or, their disk lost, with one that is made again.

What a sampler makes of an assignment follows from it: so a shard that is made again of the same assignment
comes out as it did.
"""

from __future__ import annotations

from typing import Any

from cachecd import events as ev
from cachecd.model import Assignment, Lease, Outcome, ShardId
from cachecd.reconcile import Found
from cachecd.wanted import ReplyMissing, ShardsRecalled, Wanted
from tests.policy_model import Account, Records
from tests.units import records_of
from tests.watch import Watch
from tests.world import World

Contents = dict[ShardId, Records]


class ResumedWatch(Watch):
    """Of the lease of a set that there was, other things hold than of a new epoch's."""

    _world: ResumingWorld
    wanted: tuple[Lease, Contents] | None = None  # what the event that is handled asks for

    def granted(self, lease: Lease) -> None:
        if self.wanted is None:
            super().granted(lease)
            return
        before, contents = self.wanted
        account = self.of[lease.dataset]
        assert (lease.shards, lease.generation) == (before.shards, before.generation)
        assert lease.fingerprint == before.fingerprint
        there = {ShardId(lease.dataset, n): account.shards[n] for n in numbers_of(lease)}
        assert {shard: sealed.records for shard, sealed in there.items()} == contents
        heir = any(other.fingerprint == lease.fingerprint for other in self.leases.values())
        for shard, sealed in there.items():
            assert not sealed.barred, "a set has a corrupt shard"
            assert not sealed.suspect, "a set has a shard that may be corrupt"
            assert heir or not sealed.retired, "a retired shard that no lease keeps"
            assert shard not in self.going, "a shard that is being removed"
        self.leases[lease.id] = lease

    def started(self, assignment: Assignment, records: Records) -> None:
        again = self._world.again.get(assignment.shard)
        super().started(assignment, again[2] if again else records)

    def nothing_is_begun(self, name: str, ever: bool = False) -> None:
        if not self.awaits(name):
            super().nothing_is_begun(name, ever)

    def awaits(self, name: str) -> bool:
        """Whether a run is about to recall its set; for a while nothing else is begun then."""
        dataset = self._world.state.datasets[name]
        return dataset.recall.awaits(dataset.plan.next_number, self._world.now)

    def recalled(self, assignment: Assignment, records: Records) -> None:
        self.of[assignment.shard.dataset].open[assignment.shard.number] = records


def numbers_of(lease: Lease) -> list[int]:
    return [n for first, last in lease.shards for n in range(first, last + 1)]


class ResumingWorld(World):
    """Remembers every set that was held, and how its shards were made."""

    watched_by = ResumedWatch
    model: ResumedWatch

    def __init__(self, *arguments: Any) -> None:
        self.made: dict[ShardId, tuple[Assignment, Outcome, Records]] = {}
        self.past: list[tuple[Lease, dict[ShardId, tuple[Assignment, Outcome, Records]]]] = []
        self.again: dict[ShardId, tuple[Assignment, Outcome, Records]] = {}  # to be made as it was
        super().__init__(*arguments)

    def _known(self, name: str, found: Found, lost: bool) -> None:
        super()._known(name, found, lost)
        for shard, (assignment, _, records) in self.again.items():
            if shard.dataset == name and shard.number in self.model.of[name].open:
                self.model.recalled(assignment, records)

    def _carry_out(self, command: ev.Command) -> None:
        super()._carry_out(command)
        if isinstance(command, ev.WriteManifest) and self.model.wanted is None:
            lease = command.lease
            shards = [ShardId(lease.dataset, n) for n in numbers_of(lease)]
            if all(shard in self.made for shard in shards):
                self.past.append((lease, {shard: self.made[shard] for shard in shards}))

    def _start(self, assignment: Assignment) -> None:
        shard = assignment.shard
        if shard in self.again and self.again[shard][0] != assignment:
            del self.again[shard]  # something was taken out of it
        super()._start(assignment)

    def make(self, shard: ShardId, outcome: Outcome | None = None) -> None:
        before = self.again.get(shard)
        super().make(shard, before[1] if before else outcome)

    def publish(self, shard: ShardId) -> None:
        outcome, assignment = self.publishing[shard]
        super().publish(shard)
        if shard in self.disk:
            self.made[shard] = assignment, outcome, self.disk[shard]

    def lose_disk(self) -> None:
        """The daemon starts on another machine: nothing is there but what the source lists."""
        self.disk.clear()
        self.meta.clear()
        self.manifests.clear()
        self.locks.clear()
        self.made.clear()
        self.again.clear()
        self.rows = type(self.rows)()
        self.model.leases.clear()
        self.model.of = {name: Account(rules) for name, rules in self.rules.items()}
        self.restart()

    def ask_again(self, which: int, job: str) -> tuple[Lease, ev.Command]:
        """A run asks for a set that there was, by all that its state has of it."""
        lease, shards = self.past[which]
        contents = {shard: records for shard, (_, _, records) in shards.items()}
        wanted = Wanted(lease.generation, lease.shards, lease.fingerprint, lease.walk, lease.cursor)
        self.requests += 1
        request = str(self.requests)
        self.model.wanted = lease, contents
        try:
            self.feed(ev.AcquireAsked(request, lease.dataset, job, lease.epoch, wanted=wanted))
        finally:
            self.model.wanted = None
        reply = self.replies.pop(request, None)
        if reply is None:
            reply = ev.ReplyWaiting(request, 0, 0, 0.0, "the daemon was killed")
        if isinstance(reply, ev.ReplyGranted) and reply.lease in self.manifests:
            self.locks[reply.lease].add(0)
            self.model.held(reply.lease)
            self.feed(ev.RankHolds(f"{request} holds", reply.lease, 0))
            if self.reads_at_once:
                self.deliver(reply.lease)
        return lease, reply

    def recall(self, which: int, missing: ReplyMissing) -> bool:
        """The run has these shards made again, where its numbers and records are free; whether they are."""
        lease, shards = self.past[which]
        name, dataset = lease.dataset, self.state.datasets[lease.dataset]
        account = self.model.of[name]
        lacking = [
            ShardId(name, n) for first, last in missing.shards for n in range(first, last + 1)
        ]
        if lease.generation != dataset.rules.generation:
            return False
        if any(shard.number < dataset.plan.next_number for shard in lacking):
            return False
        being_made = []
        for shard in shards.keys() - set(lacking):
            if (here := dataset.plan.open.get(shard.number)) is None:
                same = self.made.get(shard) == shards[shard]
            else:
                being_made.append(shard)
                outcome = self.publishing.get(shard, (shards[shard][1],))[0]
                same = (here, outcome) == shards[shard][:2]
            if not same:
                return False
        wanted = {record for shard in lacking for record in records_of(shards[shard][0].units)}
        ours = {shard.number for shard in shards}
        others = [s.records for n, s in account.shards.items() if n not in ours and not s.barred]
        others += [records for n, records in account.open.items() if n not in ours]
        if any(records & wanted for records in others):
            return False
        parts = [u for shard in lacking for u in shards[shard][0].units]
        begins = {(u.unit, u.ordinal) for u in parts}
        left = [u for u in dataset.plan.left_over if (u.unit, u.ordinal) not in begins]
        if records_of(tuple(left)) & wanted:
            return False
        units = len(self.sources[name])
        if any(u.unit >= units for u in parts):
            return False
        for shard in [*lacking, *being_made]:
            self.again[shard] = shards[shard]
            self.model.recalled(shards[shard][0], shards[shard][2])
        self.requests += 1
        assignments = tuple(shards[shard][0] for shard in lacking)
        last = numbers_of(lease)[-1]
        self.feed(ShardsRecalled(str(self.requests), name, assignments, lease.num_bytes, last))
        reply = self.replies.pop(str(self.requests), None)
        if isinstance(reply, ev.ReplyRefused):
            for shard in lacking:  # none are open if the daemon was killed after its reply
                self.model.of[name].open.pop(shard.number, None)
        else:
            # What is in no shard comes when the other parts of its unit go, as after rotation.
            there = wanted.union(*(s.records for s in account.shards.values()))
            there.update(*account.open.values(), records_of(tuple(dataset.plan.left_over)))
            account.torn |= {unit for unit, _ in wanted if not self.model.all_of(unit) <= there}
        return isinstance(reply, ev.ReplyDone)
