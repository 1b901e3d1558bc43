"""The life of leases, from the manifest to the end. Pure.

The daemon writes the manifest of a lease, and grants the lease to the ranks of its node. Locks on the
manifest show which processes hold the lease. When no process holds it, the daemon deletes the manifest. A
grant stays valid without a lock for 30 s after the latest request of a rank, or until all ranks have held
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cachecd.policy import commands as do
from cachecd.policy.generation import Generation
from cachecd.policy.room import Room
from cachecd.policy.values import GenerationId, Lease

# Seconds. A rank locks the manifest as soon as the lease is granted, unless the machine is overloaded.
GRACE = 30.0


@dataclass(slots=True)
class LeaseState:
    """A lease. `allocated`: the bytes of its shards on disk. `held_by`: the ranks that held it, according
    to its mark. `requests` wait until the manifest is `written` and `marking` marks are durable; the
    value of a request is True if it is for a repeated set. `note`: which shards the set lacks, and why.
    `repeats`: why another epoch repeats this set."""

    lease: Lease
    allocated: int
    grace_until: float
    written: bool = False
    requests: dict[str, bool] = field(default_factory=dict)
    held_by: set[int] = field(default_factory=set)
    marking: int = 0
    note: str = ""
    repeats: str = ""

    @property
    def by_all(self) -> bool:
        return len(self.held_by) >= self.lease.ranks

    def renew(self, rank: int, now: float) -> bool:
        """Restarts the 30 s, because a rank requests the lease. Returns whether the rank held the lease
        before. If it did, all ranks may request the lease again."""
        self.grace_until = now + GRACE
        is_again = rank in self.held_by
        if is_again:
            self.held_by.clear()
        return is_again

    def stands(self, now: float) -> bool:
        """Whether the lease is valid although no process locks its manifest."""
        return not self.written or (now < self.grace_until and not self.by_all)


class Leases:
    """All leases, by name and by (dataset, job, epoch). Commands are appended to `out`.

    If the manifest of a new epoch cannot be written, all ranks of the job repeat their last set: its
    lease then serves the new epoch as well. So training never waits for a full disk.
    """

    def __init__(self, room: Room, out: list[do.Command]) -> None:
        self.by_id: dict[str, LeaseState] = {}
        self._room, self._out = room, out
        self._by_epoch: dict[tuple[str, str, int], str] = {}

    def of(self, dataset: str, job: str, epoch: int) -> LeaseState | None:
        """Returns the lease of a job's epoch."""
        return self.by_id.get(self._by_epoch.get((dataset, job, epoch), ""))

    def of_job(self, dataset: str, job: str) -> list[LeaseState]:
        """Returns all leases of a job."""
        return [
            each
            for each in self.by_id.values()
            if (each.lease.dataset, each.lease.job) == (dataset, job)
        ]

    def generation_of(self, lease: Lease) -> Generation | None:
        """Returns the generation of a lease, or None if it is not on disk or has another S."""
        gen = self._room.by_id.get(GenerationId(lease.dataset, lease.generation))
        return gen if gen and gen.table.streams == lease.streams else None

    def add(self, state: LeaseState, epochs: Iterable[int] = ()) -> None:
        """Adds a new lease, or a lease that a start found. `epochs`: other epochs that the lease
        serves."""
        lease = state.lease
        self.by_id[lease.id] = state
        for epoch in (lease.epoch, *epochs):
            self._by_epoch[lease.dataset, lease.job, epoch] = lease.id
        if dataset := self._room.datasets.get(lease.dataset):
            dataset.leases += 1
            dataset.epoch = max(dataset.epoch, lease.epoch)
        if gen := self.generation_of(lease):
            gen.table.hold(lease)

    def request(self, state: LeaseState, request: str, epoch: int, rank: int, now: float) -> None:
        """Grants a lease to a rank, at once or when the manifest is written."""
        if state.renew(rank, now):
            self._mark(state)
        state.requests[request] = epoch != state.lease.epoch
        self._reply_granted(state)

    def _mark(self, state: LeaseState, epoch: int | None = None) -> None:
        """Writes a mark next to the manifest, for a later start. The ranks wait until it is durable."""
        state.marking += 1
        self._out.append(do.MarkLease(state.lease.id, epoch=epoch))

    def _reply_granted(self, state: LeaseState) -> None:
        if not state.written or state.marking:
            return
        coverage = self._room.datasets[state.lease.dataset].generation.coverage
        for request, is_repeated in state.requests.items():
            note = state.repeats if is_repeated else state.note
            counts = state.lease.num_records, state.lease.num_skipped
            self._out.append(do.ReplyGranted(request, state.lease.id, coverage, note, *counts))
        state.requests.clear()

    def marked(self, lease: str) -> None:
        """Handles the result of writing a mark. If the disk refused the mark, the next start may wait 30
        s for a rank."""
        if (state := self.by_id.get(lease)) is not None:
            state.marking -= 1
            self._reply_granted(state)

    def repeat(self, lease: Lease, why: str, now: float) -> LeaseState | None:
        """Lets the last lease of a job serve another epoch, on all ranks. Returns None if the job has no
        lease, or if the lease has an excluded record."""
        known = self.of_job(lease.dataset, lease.job)
        last = max(known, key=lambda each: each.lease.epoch, default=None)
        if last is None or not last.written or last.lease.ranks != lease.ranks:
            return None
        if self._has_excluded(last.lease):
            return None
        self._by_epoch[lease.dataset, lease.job, lease.epoch] = last.lease.id
        last.held_by.clear()
        last.grace_until = now + GRACE
        last.repeats = f"the set of epoch {last.lease.epoch} is repeated: {why}"
        self._mark(last)
        self._mark(last, lease.epoch)
        return last

    def written(self, lease: str) -> None:
        """Grants a lease whose manifest is on disk to the waiting ranks, if all of its shards are still
        live."""
        if (state := self.by_id.get(lease)) is None:
            return
        state.written = True
        gen = self.generation_of(state.lease)
        shards = gen.table.find(state.lease.intervals) if gen else None
        if shards is not None and shards.versions == state.lease.versions:
            self._reply_granted(state)
        else:
            self._reply_waiting(state, "a shard of the set was quarantined")
            self._out.append(do.EndLease(lease))

    def refused(self, lease: str, reason: str, now: float, may_repeat: bool) -> None:
        """Ends a lease whose manifest the disk refused. The ranks repeat the job's last set, if there is
        one and `may_repeat`."""
        if (state := self.by_id.get(lease)) is None:
            return
        self.ended(lease)
        last = self.repeat(state.lease, reason, now) if may_repeat else None
        if last is not None:
            last.requests |= dict.fromkeys(state.requests, True)
        else:
            self._reply_waiting(state, reason)

    def _reply_waiting(self, state: LeaseState, reason: str) -> None:
        self._out += [do.ReplyWaiting(each, 0, 0, reason) for each in state.requests]
        state.requests.clear()

    def holds(self, request: str, lease: str, rank: int) -> None:
        state = self.by_id.get(lease)
        if state is None:
            message = f"lease {lease} has ended: acquire again"
            self._out.append(do.ReplyRefused(request, "lease-lost", message))
        elif not 0 <= rank < state.lease.ranks:
            message = f"rank {rank}: expected 0 to {state.lease.ranks - 1}"
            self._out.append(do.ReplyRefused(request, "bad-request", message))
        else:
            if rank not in state.held_by:
                state.held_by.add(rank)
                self._out.append(do.MarkLease(lease, rank))
            if dataset := self._room.datasets.get(state.lease.dataset):
                dataset.was_held = True
            self._out.append(do.ReplyDone(request))

    def delivered(self, lease: str, fraction: float) -> None:
        state = self.by_id.get(lease)
        dataset = self._room.datasets.get(state.lease.dataset) if state else None
        if state and dataset and dataset.generation is self.generation_of(state.lease):
            part = min(max(fraction, 0.0), 1.0) * state.allocated / state.lease.ranks
            dataset.rotation.delivered += part

    def unheld(self, lease: str, now: float) -> None:
        """Ends a lease that no process holds: after 30 s, or at once if it could no longer be granted."""
        if (state := self.by_id.get(lease)) is None:
            return
        if not state.stands(now) or (state.written and self._is_barred(state.lease)):
            self._out.append(do.EndLease(lease))

    def _is_barred(self, lease: Lease) -> bool:
        """Whether the lease could no longer be granted."""
        dataset, gen = self._room.datasets.get(lease.dataset), self.generation_of(lease)
        if dataset is None or gen is None or gen.split != dataset.rules.split:
            return True
        return gen.table.has_quarantined(lease.intervals) or self._has_excluded(lease)

    def ended(self, lease: str) -> None:
        """Forgets a lease whose manifest is deleted, and unlinks files that no lease names any more."""
        if (state := self.by_id.pop(lease, None)) is None:
            return
        for epoch in [epoch for epoch, name in self._by_epoch.items() if name == lease]:
            del self._by_epoch[epoch]
        if dataset := self._room.datasets.get(state.lease.dataset):
            dataset.leases -= 1
        if gen := self.generation_of(state.lease):
            gen.table.let_go(state.lease)
            gen.unlink_unleased()

    def _has_excluded(self, lease: Lease) -> bool:
        """Whether a shard of the lease may have an excluded record: it has one, or has another version
        now."""
        if (gen := self.generation_of(lease)) is None:
            return True
        excluded = (number for number, repair in gen.repairs.items() if repair.excluded)
        known = dict(lease.versions)
        newer = (known.get(n, 0) != v for n, v in gen.table.set_of(lease.intervals).versions)
        return any(newer) or any(gen.table.names(lease.id, n, known.get(n, 0)) for n in excluded)
