"""What a rank is told while its dataset cannot be leased: how far it is, or why it never will. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cachecd.dataset import DatasetState
from cachecd.events import ReplyRefused, ReplyWaiting
from cachecd.model import Lease
from cachecd.room import Room


@dataclass(frozen=True, slots=True)
class Hindrances:
    """What may stand in a dataset's way: `stuck` as Room has it; `holder`: a lease that keeps room;
    `no_more`: why nothing is fetched any more, and what to do."""

    stuck: bool
    holder: Lease | None
    no_more: str
    disk: str


def not_ready(
    dataset: DatasetState, room: Room, needed: int, why: Hindrances, request: str, now: float
) -> ReplyWaiting | ReplyRefused:
    """The reply to an acquire that cannot be granted now.

    Waiting carries figures and, if ingest is stopped, the reason. Refused is for what waiting cannot
    change: an empty source, nothing that could be made of it, or no room, with the limit that would do.
    """
    name, plan = dataset.rules.name, dataset.plan
    have = dataset.data()
    if dataset.listed and not plan.num_units:
        empty = f"the source of {name} has no objects, or its split or partition leaves it none"
        return _never(request, f"{empty}: there is nothing to lease")
    if why.no_more:
        return _never(
            request, f"{have} bytes of {name} are cached and no more will come: {why.no_more}"
        )
    if dataset.whole and not have:
        return _never(
            request,
            f"no record of {name} could be made: all {plan.num_aside} units are set aside; "
            "`cachecd status` names the reasons",
        )
    want = plan.estimated_bytes if dataset.rules.pin else needed
    if why.stuck and why.holder is None:
        return _never(request, _too_small(dataset, room, have, want))
    fetched = sum(making.fetched_bytes for making in dataset.making.values())
    reason = dataset.source.why or why.disk or dataset.unlisted
    if why.stuck and why.holder is not None:
        reason = f"there is no room until lease {why.holder.id} of job {why.holder.job} ends"
    if not reason and dataset.being_verified is not None:
        reason = f"shard {dataset.being_verified} was reported corrupt and is being verified"
    if not reason and not dataset.listed and not plan.num_units:
        reason = f"listing the source: {dataset.waits_for}".removesuffix(": ")
    reason = reason or dataset.waits_for or held_back(dataset)
    return ReplyWaiting(request, have + fetched, want, dataset.rate.now(now), reason)


def _too_small(dataset: DatasetState, room: Room, have: int, want: int) -> str:
    """What is too small, and what would do."""
    name, own, ledger = dataset.rules.name, dataset.rules.limit, room.ledger
    said = f"{name} needs {want} bytes before it can be leased, {have} fit"
    more = (room.shards_for(dataset, want - have) + 1) * ledger.footprint
    if ledger.crowded:
        return f"{said}: the file system of cache.dir is full; free {more - int(ledger.spare)} bytes on it"
    key, now_is = "cache.limit", ledger.limit
    if own is not None and own - ledger.of(name) < ledger.footprint:
        key, now_is = f"datasets.{name}.limit", own
    return f"{said}: raise {key} from {now_is} to about {now_is + more - room.space(dataset)} bytes"


def held_back(dataset: DatasetState) -> str:
    """Why nothing is leased though shards are cached, "" if something is or there are none such."""
    if dataset.leasable is not None or not (withheld := len(dataset.withheld)):
        return ""
    return (
        f"the split was changed: none of the {withheld} shards that were made before is leased, for "
        "they may hold records that are held out now; they make room for new ones"
    )


def still_held(lease: Lease, dataset: DatasetState, request: str) -> ReplyWaiting:
    """The reply to a rank whose job has a lease of this epoch that was granted before the split was
    changed, and that somebody holds."""
    reason = (
        f"the split was changed, and lease {lease.id} of before, of epoch {lease.epoch} of job "
        f"{lease.job}, is still held: it may name records that are held out now; the run that holds it "
        "must end first, or this one ask under another job name"
    )
    return ReplyWaiting(request, dataset.data(), 0, 0.0, reason)


def _never(request: str, message: str) -> ReplyRefused:
    return ReplyRefused(request, "impossible", message)
