"""Leases: which requests are refused, which set a resumed run gets, and how a lease is made. Pure."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cachecd.dataset import DatasetState
from cachecd.events import AcquireAsked, ReplyRefused, ReplyWaiting
from cachecd.model import MOST_CURSOR, Lease, Ranges, Resume
from cachecd.rules import DatasetRules
from cachecd.shardtable import ALL, ShardSet, numbers_of

# A rank that was granted a lease locks its manifest at once; half a minute covers one that is
# stopped in between by a full machine.
GRACE = 30.0
# A shard's name has ten digits for its number, and no client's word shall use them up: a shard a second
# comes to this in thirty years.
_HIGHEST = 1_000_000_000
_MOST = 10_000_000  # a set's shards


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


def refusal(asked: AcquireAsked, datasets: Mapping[str, DatasetState]) -> ReplyRefused | None:
    """Why nobody could ever be given this."""
    if asked.dataset not in datasets:
        names = ", ".join(sorted(datasets))
        message = f"no dataset {asked.dataset!r}; this daemon serves {names}"
        return ReplyRefused(asked.request, "unknown-dataset", message)
    if not 0 <= asked.epoch < 1 << 63 or not 0 <= asked.local_rank < asked.local_world_size:
        message = (
            f"epoch {asked.epoch}, local rank {asked.local_rank} of {asked.local_world_size}: "
            "expected 0 <= epoch < 2**63 and 0 <= rank < world size"
        )
        return ReplyRefused(asked.request, "bad-request", message)
    if (resume := asked.resume) is not None:
        wrong = no_set(resume.shards, datasets[asked.dataset].plan.next_number)
        if not 0 <= resume.cursor < MOST_CURSOR:
            wrong = f"cursor: expected a number from 0 to {MOST_CURSOR - 1}"
        if wrong:
            return ReplyRefused(asked.request, "bad-request", wrong)
    return None


def no_set(named: Ranges, next_number: int = 1) -> str:
    """Why no set can have had these shards, "" if one can. Numbers below `next_number` were used here,
    however high they are."""
    highest = max(_HIGHEST, next_number - 1)
    ends = [0, *(end for pair in named for end in pair), highest + 1]
    pairs = list(zip(ends[::2], ends[1::2], strict=True))  # the gaps between the ranges
    ascend = all(last < first for last, first in pairs) and all(a <= b for a, b in named)
    if ascend and sum(b - a + 1 for a, b in named) <= _MOST:
        return ""
    return (
        f"shards {str(named[:3])[:80]}: expected ascending ranges of numbers from 1 to {highest}, "
        f"{_MOST} in all"
    )


def set_again(
    dataset: DatasetState, asked: AcquireAsked, resume: Resume, leases: Iterable[LeaseState]
) -> ShardSet | ReplyWaiting | None:
    """The set that a resumed run had, if all of it is still here and may be leased.

    A retired shard is here as long as another lease of the same set stands: another lease of that set
    keeps no shard that is not kept anyway.
    """
    live = dataset.live
    count = sum(last - first + 1 for first, last in resume.shards)
    if not 0 < count <= len(live) or not dataset.may_lease(resume.generation):
        return None
    inherited = any(held.lease.fingerprint == resume.fingerprint for held in leases)
    numbers = numbers_of(resume.shards)
    served = numbers_of(live.served_set(resume.generation).ranges)
    for number in np.setdiff1d(numbers, served).tolist():
        shard = live.get(number)
        if shard is None or shard.barred or shard.unlinking:
            return None
        if shard.verifying:
            why = f"shard {number} of the set is being verified"
            return ReplyWaiting(asked.request, 0, 0, 0.0, why)
        if not (inherited and shard.retired):
            return None
    found = live.set_of(numbers)
    same = fingerprint_of(asked.dataset, resume.generation, found) == resume.fingerprint
    return found if same else None


def begin_at(dataset: DatasetState, resume: Resume) -> bool:
    """Has a generation that never sealed a shard begin where a resumed run of the same walk was; whether
    the walk moves. A place beyond the listing counts modulo the units listed. New shards get numbers
    above those of the run: it may have read records of shards that had these numbers."""
    plan, rules = dataset.plan, dataset.rules
    if (resume.generation, resume.walk) != (rules.generation, walk_of(rules)):
        return False
    if dataset.made() or dataset.began_at == resume.cursor:
        return False
    dataset.began_at = resume.cursor
    plan.walk.cycle.skip_to(resume.cursor)
    last = resume.shards[-1][1] if resume.shards else 0
    if last >= plan.next_number:
        plan.overtake(last)
    dataset.exhausted = False
    return True


def may_stand(dataset: DatasetState, lease: Lease) -> bool:
    """Whether the lease's set could be granted to somebody now."""
    barred = dataset.live.any_barred_in(lease.shards)
    barred = barred or any(within(number, lease.shards) for number in dataset.excluded.shards)
    return dataset.may_lease(lease.generation) and not barred


def no_delivery(lease: Lease, shards: Ranges, shares: Sequence[int]) -> str:
    """Why nobody can have been given this of a lease, "" if somebody can."""
    if wrong := no_set(shards):
        return wrong
    if len(shares) != len(shards) or not all(0 <= share <= ALL for share in shares):
        return f"{len(shares)} shares of {len(shards)} ranges: expected one of 0 to {ALL} for each"
    named, own = (np.array(ranges, np.int64).reshape(-1, 2) for ranges in (shards, lease.shards))
    at = np.searchsorted(own[:, 0], named[:, 0], side="right") - 1
    strange = (at < 0) | (named[:, 1] > own[at, 1]) if len(own) else np.ones(len(named), np.bool_)
    for first, last in named[strange][:1].tolist():
        return f"shards {first} to {last}: they are not of lease {lease.id}"
    return ""


def within(number: int, ranges: Ranges) -> bool:
    """Whether ascending ranges name this number."""
    at = bisect_right(ranges, number, key=lambda pair: pair[0]) - 1
    return at >= 0 and number <= ranges[at][1]
