"""What a job asks for: whether that can be, and the very set of shards that a resumed run wants. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from cachecd.dataset import DatasetState
from cachecd.events import AcquireAsked, ReplyDone, ReplyRefused, ReplyWaiting
from cachecd.grant import LeaseState, fingerprint_of, walk_of
from cachecd.model import Ranges
from cachecd.room import Room
from cachecd.shardtable import ShardSet, numbers_of, ranges_of
from cachecd.wanted import ReplyMissing, ShardsRecalled, Wanted

# A shard's name has ten digits for its number, and no client's word shall use them up: a shard a second
# comes to this in thirty years.
_HIGHEST = 1_000_000_000
_MOST = 10_000_000  # a set's shards: so many numbers are made an array of


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
    if asked.wanted is not None and (wrong := no_set(asked.wanted.shards)):
        return ReplyRefused(asked.request, "bad-request", wrong)
    return None


def no_set(named: Ranges) -> str:
    """Why no set that there was can have had these shards, "" if one can."""
    ends = [0, *(end for pair in named for end in pair), _HIGHEST + 1]
    pairs = list(zip(ends[::2], ends[1::2], strict=True))  # the gaps between the ranges
    ascend = all(last < first for last, first in pairs) and all(a <= b for a, b in named)
    if ascend and sum(b - a + 1 for a, b in named) <= _MOST:
        return ""
    return f"shards {named[:3]}: expected ascending ranges of numbers from 1 to {_HIGHEST}, {_MOST} in all"


def set_again(
    dataset: DatasetState,
    asked: AcquireAsked,
    wanted: Wanted,
    known: LeaseState | None,
    leases: Iterable[LeaseState],
) -> ShardSet | int | ReplyMissing | ReplyWaiting | ReplyRefused:
    """The set that is wanted, if all of it is there; how many of its shards are being made again; or what
    else is in the way. `known` is the lease that the job has for this epoch.

    Of its shards, what is retired is there as long as another lease of the same set stands: an heir to it
    keeps nothing that is not kept anyway.
    """
    request = asked.request
    if known is not None:
        why = f"lease {known.lease.id} of another set stands for epoch {asked.epoch} of this job"
        return ReplyMissing(request, (), why)
    if not dataset.may_lease(wanted.generation):
        why = "the split was changed: the set may hold records that are held out now"
        return ReplyMissing(request, wanted.shards, why)
    live = dataset.live
    numbers = numbers_of(wanted.shards)
    served = numbers_of(live.served_set(wanted.generation).ranges)
    others = numbers[~np.isin(numbers, served)].tolist()
    inherited = any(held.lease.fingerprint == wanted.fingerprint for held in leases)
    missing: list[int] = []
    coming: list[int] = []
    for number in others:
        shard = live.get(number)
        if shard is None:
            (coming if number in dataset.plan.open else missing).append(number)
        elif shard.verifying and not shard.barred:
            return ReplyWaiting(request, 0, 0, 0.0, f"shard {number} of the set is being verified")
        elif not (inherited and shard.retired) or shard.barred or shard.unlinking:
            missing.append(number)
    if missing:
        named = ranges_of(np.array(missing, np.int64))
        return ReplyMissing(request, named, f"{len(missing)} of its {len(numbers)} shards are gone")
    if coming:
        return len(coming)
    found = live.set_of(numbers)
    if fingerprint_of(asked.dataset, wanted.generation, found) != wanted.fingerprint:
        why = "shards of the same numbers are there, with other records"
        return ReplyMissing(request, wanted.shards, why)
    return found


def go_on(dataset: DatasetState, wanted: Wanted, now: float) -> bool:
    """Takes the walk to where a run left it, unless it is there already, or it is another walk; whether
    it, or what is numbered, has moved. Numbers go on behind those that the run knows: of one that it knows
    it may have read records. If it wants its own set, that may be about to be recalled under them."""
    plan, rules = dataset.plan, dataset.rules
    mine = (rules.generation, walk_of(rules), len(plan.walks))
    same = (wanted.generation, wanted.walk, len(wanted.cursor)) == mine
    behind = [
        (walk, cursor)
        for walk, cursor in zip(plan.walks, wanted.cursor if same else (), strict=same)
        if walk.cycle.cursor < cursor
    ]
    for walk, cursor in behind:
        walk.cycle.skip_to(cursor)
    last = wanted.shards[-1][1] if wanted.shards else 0
    if behind and wanted.fingerprint:
        dataset.recall.awaited(last, now)
    behind_by_number = last >= plan.next_number and not wanted.fingerprint
    if behind_by_number:
        plan.overtake(last)
    if behind or behind_by_number:
        dataset.exhausted = False
    return bool(behind or behind_by_number)


def take_recalled(
    dataset: DatasetState, room: Room, recalled: ShardsRecalled, now: float
) -> ReplyDone | ReplyWaiting | ReplyRefused:
    """Has shards of a set made again, if the set can be there as a whole."""
    capacity = room.capacity(dataset)
    if recalled.num_bytes > capacity:
        more = recalled.num_bytes - capacity + room.ledger.footprint
        own = dataset.rules.limit is not None and dataset.rules.limit <= capacity
        key = f"datasets.{dataset.rules.name}.limit" if own else "cache.limit"
        message = (
            f"the set takes {recalled.num_bytes} bytes, and {dataset.rules.name} can have {capacity}: "
            f"raise {key} by about {more} bytes"
        )
        return ReplyRefused(recalled.request, "impossible", message)
    dataset.recall.awaited(recalled.last, now)
    dataset.recall.take(dataset.plan, recalled.assignments)
    dataset.retry.update((a.shard.number, now) for a in recalled.assignments)
    if recalled.waiting:
        return ReplyWaiting(recalled.request, 0, 0, 0.0, recalled.waiting)
    return ReplyDone(recalled.request)


def cursors(plan_cursor: int | Sequence[int]) -> tuple[int, ...]:
    """A plan's cursor, of each source."""
    return (plan_cursor,) if isinstance(plan_cursor, int) else tuple(plan_cursor)
