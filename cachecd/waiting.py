"""What a rank is told while its dataset cannot be leased: how far it is, or why it never will. Pure."""

from __future__ import annotations

from cachecd.dataset import DatasetState
from cachecd.events import ReplyRefused, ReplyWaiting
from cachecd.ledger import Ledger


def not_ready(
    dataset: DatasetState,
    ledger: Ledger,
    needed: int,
    stuck: bool,
    offline: bool,
    disk_reason: str,
    request: str,
    now: float,
) -> ReplyWaiting | ReplyRefused:
    """The reply to an acquire that cannot be granted now.

    Waiting carries figures and, if ingest is stopped, the reason. Refused is for what waiting cannot
    change: an empty source, nothing that could be made of it, or no room (`stuck`), with the limit
    that would do.
    """
    name, plan = dataset.rules.name, dataset.plan
    have = dataset.data()
    if dataset.listed and not plan.num_units:
        return _never(request, f"the source of {name} has no objects: there is nothing to lease")
    if offline:
        return _never(
            request,
            f"offline: {have} bytes of {name} are cached and no more will come; "
            "start without --offline",
        )
    if dataset.whole and not have:
        return _never(
            request,
            f"no record of {name} could be made: all {plan.num_aside} units are set aside; "
            "`cachecd status` names the reasons",
        )
    want = plan.estimated_bytes if dataset.rules.pin else needed
    if stuck:
        more = max(want - have, 0) + 2 * ledger.footprint
        own = dataset.rules.limit
        key, now_is = ("cache.limit", ledger.limit)
        if ledger.room < ledger.footprint and ledger.spare <= ledger.room:
            return _never(
                request,
                f"{name} needs {want} bytes before it can be leased, {have} fit: the file system of "
                f"cache.dir is full; free {more} bytes on it",
            )
        if own is not None and own - ledger.of(name) < ledger.footprint:
            key, now_is = (f"datasets.{name}.limit", own)
        return _never(
            request,
            f"{name} needs {want} bytes before it can be leased, {have} fit: raise {key} from "
            f"{now_is} to about {now_is + more} bytes",
        )
    fetched = sum(making.fetched_bytes for making in dataset.making.values())
    reason = dataset.source.reason or disk_reason
    if not reason and dataset.being_verified is not None:
        reason = f"shard {dataset.being_verified} was reported corrupt and is being verified"
    if not reason and not dataset.listed and not plan.num_units:
        reason = "listing the source"
    return ReplyWaiting(request, have + fetched, want, dataset.rate_now(now), reason)


def _never(request: str, message: str) -> ReplyRefused:
    return ReplyRefused(request, "impossible", message)
