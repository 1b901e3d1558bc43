"""Leases that are granted or held, and how a lease is made. Pure.

A lease's life: its manifest is written, it is granted, held by all ranks of its node, held by no rank, and
ends. Locks on the manifest show its holders. A grant stays valid without a lock for 30 s after the latest
request of a rank, or until all ranks have held it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from cachecd.policy.events import AcquireAsked
from cachecd.policy.generation import Generation
from cachecd.policy.shard_table import ShardSet
from cachecd.policy.values import Lease, Rules

# A rank that was granted a lease locks its manifest at once; half a minute covers one that is stopped in
# between by a full machine.
GRACE = 30.0


@dataclass(slots=True)
class LeaseState:
    """A lease that is granted or held. `held_by`: ranks that held it, as a start will know them. `requests`
    (and whether each is of a further epoch) wait until the manifest is `written`, and for `marking` marks.
    `allocated`: bytes on disk of its shards. `note`: what the set lacks, and why. `repeats`: why this is
    the lease of a further epoch too."""

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
        """A rank requests the lease: the 30 s begin again. Returns whether the rank has held it: then all
        ranks may come again."""
        self.grace_until = now + GRACE
        is_again = rank in self.held_by
        if is_again:
            self.held_by.clear()
        return is_again

    def stands(self, now: float) -> bool:
        """Whether the lease is valid although no process locks its manifest."""
        return not self.written or (now < self.grace_until and not self.by_all)


def new_lease(
    rules: Rules, event: AcquireAsked, gen: Generation, shards: ShardSet, serial: str
) -> Lease:
    """The lease of these shards. `serial` makes its name unique. The fingerprint is the sum of all records'
    digests: it names content, and never versions."""
    shape = gen.blocks.shape
    job = hashlib.sha256(event.job.encode()).hexdigest()[:8]
    # The text has a version, so that the order of an epoch never drifts.
    order = f"cachecd-epoch-order-1:{rules.seed}:{event.epoch}".encode()
    return Lease(
        id=f"{rules.name}.{event.epoch}.{job}.{serial}",
        dataset=rules.name,
        generation=gen.id.name,
        job=event.job,
        epoch=event.epoch,
        streams=shape.streams,
        intervals=shards.intervals,
        versions=shards.versions,
        num_records=shards.records,
        num_bytes=shards.data_bytes,
        fingerprint=f"{shards.digest:016x}",
        seed=int.from_bytes(hashlib.sha256(order).digest()[:8], "little"),
        sampling_seed=shape.seed,
        pinned=rules.pin,
        ranks=event.local_world_size,
        place=gen.place,
        source_records=gen.source_records,
        num_skipped=shards.passed,
    )
