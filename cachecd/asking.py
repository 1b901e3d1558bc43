"""What a job asks for: whether that can be, and the very set of shards that a resumed run wants. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from cachecd.dataset import DatasetState
from cachecd.events import AcquireAsked, ReplyDone, ReplyRefused, ReplyWaiting
from cachecd.grant import LeaseState, fingerprint_of, walk_of
from cachecd.model import MOST_CURSOR, Lease, Ranges
from cachecd.room import Room
from cachecd.shardtable import ALL, ShardSet, numbers_of, ranges_of
from cachecd.wanted import ReplyMissing, ShardsRecalled, Wanted

# A shard's name has ten digits for its number, and no client's word shall use them up: a shard a second
# comes to this in thirty years.
_HIGHEST = 1_000_000_000
_MOST = 10_000_000  # a set's shards
# Passes over the source that a run can have made: more in a second each than there are in 12 days.
_MOST_PASSES = 1 << 20


def refusal(
    asked: AcquireAsked, datasets: Mapping[str, DatasetState]
) -> ReplyRefused | ReplyWaiting | None:
    """Why nobody could ever be given this, or why nobody knows yet whether somebody can."""
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
    if (wanted := asked.wanted) is not None:
        dataset = datasets[asked.dataset]
        wrong = no_set(wanted.shards, dataset.plan.next_number)
        if any(not 0 <= place < MOST_CURSOR for place in wanted.cursor):
            wrong = f"cursor: expected numbers from 0 to {MOST_CURSOR - 1}"
        far = ""
        if not wrong:
            far = _far_places(wanted.cursor, dataset) or far_numbers(wanted.last, dataset)
        if far and (why := unsure(dataset)):
            return ReplyWaiting(asked.request, 0, 0, 0.0, why)
        if wrong := wrong or far:
            return ReplyRefused(asked.request, "bad-request", wrong)
    return None


def unsure(dataset: DatasetState) -> str:
    """Why nobody knows yet how far a run over the source can have come, "" if that is known."""
    units = dataset.plan.num_units
    if dataset.listed and units:
        return ""
    return (
        f"listing the source: {units} units so far, and the run has come further than they take it"
    )


def _far_places(cursor: Sequence[int], dataset: DatasetState) -> str:
    """Why no walk over the units that are listed can have come there, "" if one can. Of several sources
    one may have lost all its units: its walk stays where it is."""
    for place, walk in zip(cursor, dataset.plan.walks, strict=False):
        if dataset.listed and not walk.cycle.num_units:
            continue
        passes = min(MOST_CURSOR - 1, walk.cycle.num_units * _MOST_PASSES)
        if place > (most := max(walk.cycle.cursor, passes)):
            return f"cursor {place}: expected 0 to {most}"
    return ""


def far_numbers(last: int, dataset: DatasetState) -> str:
    """Why no run over the units that are listed can have come to a shard of this number, "" if one can.
    Numbers go on behind it, or wait for it, and nobody takes that back."""
    plan = dataset.plan
    a_pass = plan.num_units + plan.estimated_bytes // max(1, plan.target)
    most = plan.next_number + a_pass * _MOST_PASSES
    if last < plan.next_number or (plan.num_units and last <= most):
        return ""
    return f"shards up to {last}: expected at most {most} of this source"


def no_set(named: Ranges, next_number: int = 1) -> str:
    """Why no set that there was can have had these shards, "" if one can. Numbers below `next_number` were
    used here, however high they are."""
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
    if not dataset.may_lease(wanted.generation):
        why = "the split was changed: the set may hold records that are held out now"
        return ReplyMissing(request, wanted.shards, why)
    if known is not None:
        why = f"lease {known.lease.id} of another set stands for epoch {asked.epoch} of this job"
        return ReplyMissing(request, (), why)
    live = dataset.live
    # Ranges are compared with ranges: what a message names may be of any length.
    others, unknown = _not_served(dataset, wanted)
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
    if missing or unknown:
        gone = merged([*ranges_of(np.array(sorted(missing), np.int64)), *unknown])
        count, of = (sum(b - a + 1 for a, b in named) for named in (gone, wanted.shards))
        return ReplyMissing(request, gone, f"{count} of its {of} shards are gone")
    if coming:
        return len(coming)
    found = live.set_of(numbers_of(wanted.shards))
    if fingerprint_of(asked.dataset, wanted.generation, found) != wanted.fingerprint:
        why = "shards of the same numbers are there, with other records"
        return ReplyMissing(request, wanted.shards, why)
    return found


def _not_served(dataset: DatasetState, wanted: Wanted) -> tuple[list[int], Ranges]:
    """Of the shards that are wanted: those that are known here and not served, and as ranges those that
    are not known."""
    served = dataset.live.served_set(wanted.generation).ranges
    known = sorted({*dataset.plan.open, *dataset.live}.difference(numbers_of(served).tolist()))
    others = [number for number in known if within(number, wanted.shards)]
    here = merged([*served, *((number, number) for number in others)])
    return others, without(wanted.shards, here)


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


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges that may touch, in any order, as ascending ones."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


def without(ranges: Ranges, gone: Ranges) -> Ranges:
    """What of ascending ranges is in none of the others, which ascend too."""
    found: list[tuple[int, int]] = []
    at = 0
    for first, last in ranges:
        while at < len(gone) and gone[at][1] < first:
            at += 1
        place = at
        while place < len(gone) and gone[place][0] <= last:
            if first < gone[place][0]:
                found.append((first, gone[place][0] - 1))
            first = gone[place][1] + 1
            place += 1
        if first <= last:
            found.append((first, last))
    return tuple(found)


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
        if walk.cycle.cursor < cursor and walk.cycle.num_units
    ]
    for walk, cursor in behind:
        walk.cycle.skip_to(cursor)
    if behind and wanted.fingerprint:
        dataset.recall.awaited(wanted.last, now)
    behind_by_number = wanted.last >= plan.next_number and not wanted.fingerprint
    if behind_by_number:
        plan.overtake(wanted.last)
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
