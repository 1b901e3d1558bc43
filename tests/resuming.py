"""A world whose runs resume: with the set that they had where it is here, else with the set that is."""

from __future__ import annotations

from typing import Any

from cachecd import events as ev
from cachecd.model import Lease, Resume, ShardId
from tests.policy_model import Account, Model
from tests.units import Records
from tests.world import World

Contents = dict[ShardId, Records]


class ResumedModel(Model):
    """A lease of a set that there was has other promises than a new epoch's."""

    _world: ResumingWorld
    resumed: tuple[Lease, Contents] | None = None  # what the event that is handled asks for

    def granted(self, lease: Lease) -> None:
        if self.resumed is None or lease.fingerprint != self.resumed[0].fingerprint:
            super().granted(lease)
            return
        before, contents = self.resumed
        account = self.of[lease.dataset]
        assert (lease.shards, lease.generation) == (before.shards, before.generation)
        there = {ShardId(lease.dataset, n): account.shards[n] for n in numbers_of(lease)}
        assert {shard: sealed.records for shard, sealed in there.items()} == contents
        heir = any(other.fingerprint == lease.fingerprint for other in self.leases.values())
        for shard, sealed in there.items():
            assert not sealed.barred, "a set has a corrupt shard"
            assert not sealed.suspect, "a set has a shard that may be corrupt"
            assert heir or not sealed.retired, "a retired shard that no lease keeps"
            assert shard not in self.going, "a shard that is being removed"
        self.leases[lease.id] = lease


def numbers_of(lease: Lease) -> list[int]:
    return [n for first, last in lease.shards for n in range(first, last + 1)]


class ResumingWorld(World):
    """Remembers every set that was held, and what its shards had."""

    model_type = ResumedModel
    model: ResumedModel

    def __init__(self, *arguments: Any) -> None:
        self.past: list[tuple[Lease, Contents]] = []
        super().__init__(*arguments)

    def _carry_out(self, command: ev.Command) -> None:
        super()._carry_out(command)
        if isinstance(command, ev.WriteManifest) and self.model.resumed is None:
            lease = command.lease
            shards = [ShardId(lease.dataset, n) for n in numbers_of(lease)]
            if all(shard in self.disk for shard in shards):
                self.past.append((lease, {shard: self.disk[shard] for shard in shards}))

    def lose_disk(self) -> None:
        """The daemon starts on another machine: nothing is there but what the source lists."""
        self.disk.clear()
        self.meta.clear()
        self.manifests.clear()
        self.locks.clear()
        self.rows = type(self.rows)()
        self.model.leases.clear()
        self.model.of = {name: Account(rules) for name, rules in self.rules.items()}
        self.restart()

    def ask_again(self, which: int, job: str) -> ev.Command:
        """A run asks for a set that there was, by all that its state has of it."""
        lease, contents = self.past[which]
        dataset = self.state.datasets[lease.dataset]
        sealed, before = dataset.made() > 0, dataset.began_at
        resume = Resume(lease.generation, lease.shards, lease.fingerprint, lease.walk, lease.cursor)
        self.requests += 1
        request = str(self.requests)
        self.model.resumed = lease, contents
        try:
            self.feed(ev.AcquireAsked(request, lease.dataset, job, lease.epoch, resume=resume))
        finally:
            self.model.resumed = None
        reply = self.replies.pop(request, None)
        assert not sealed or dataset.began_at == before, "a message moved a walk"
        if reply is None:
            reply = ev.ReplyWaiting(request, 0, 0, 0.0, "the daemon was killed")
        if isinstance(reply, ev.ReplyGranted) and reply.lease in self.manifests:
            self.locks[reply.lease].add(0)
            self.model.held(reply.lease)
            self.feed(ev.RankHolds(f"{request} holds", reply.lease, 0))
            if self.reads_at_once:
                self.deliver(reply.lease)
        return reply
