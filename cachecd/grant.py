"""A lease as the policy keeps it, and how one is made of a set of shards. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from cachecd.model import Lease
from cachecd.rules import DatasetRules
from cachecd.shardtable import ShardSet

# A rank that was granted a lease locks its manifest at once; half a minute covers one that is
# stopped in between by a full machine.
GRACE = 30.0


@dataclass(slots=True)
class LeaseState:
    """A lease that is granted or held, since `since`.

    `ranks` share it, as they said when they asked; 0: not known since the daemon started. `held_by`
    are those that said that they hold it; the locks know better, but not which rank has which.
    """

    lease: Lease
    grace_until: float
    since: float
    ranks: int = 0
    taken: bool = False  # some rank has held it
    held_by: set[int] = field(default_factory=set)

    def asked(self, rank: int, ranks: int, now: float) -> None:
        """A rank asks for it, for the first time or again: the grace starts anew."""
        self.ranks = max(self.ranks, ranks)
        self.held_by.discard(rank)
        self.grace_until = now + GRACE

    def stands_without_lock(self, now: float) -> bool:
        """Whether it stands although nobody holds its manifest."""
        return now < self.grace_until and not 0 < self.ranks <= len(self.held_by)


def new_lease(
    rules: DatasetRules,
    job: str,
    epoch: int,
    generation: str,
    shards: ShardSet,
    serial: str,
    cursor: int = 0,
) -> Lease:
    """The lease of these shards. `serial` makes its name unique across restarts; `cursor` is the walk's.

    `fingerprint` names the set alone: the same dataset, generation and shards, with the same records,
    give the same.
    """
    return Lease(
        id=f"{rules.name}.{epoch}.{hashlib.sha256(job.encode()).hexdigest()[:8]}.{serial}",
        dataset=rules.name,
        job=job,
        epoch=epoch,
        generation=generation,
        shards=shards.ranges,
        num_records=shards.records,
        num_bytes=shards.data_bytes,
        seed=_order_seed(rules.seed, epoch),
        pinned=rules.pin,
        fingerprint=fingerprint_of(rules.name, generation, shards),
        walk=walk_of(rules),
        cursor=cursor,
    )


def fingerprint_of(dataset: str, generation: str, shards: ShardSet) -> str:
    """Names a set."""
    return _named(dataset, generation, shards.ranges, shards.checksum)


def walk_of(rules: DatasetRules) -> str:
    """Names what a cursor counts: by the same listing, the same units come before it."""
    return _named(rules.name, rules.seed, rules.source)


def _named(*what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]


def _order_seed(seed: int, epoch: int) -> int:
    """The seed of one epoch's order; the text has a version so that the order never drifts."""
    text = f"cachecd-epoch-order-1:{seed}:{epoch}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
