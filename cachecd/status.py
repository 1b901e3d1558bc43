"""The status document: what `cachecd status --json` prints and `Cache.status()` returns. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cachecd.dataset import DatasetState
from cachecd.model import SetAside
from cachecd.state import State
from cachecd.waiting import held_back

_MOST_REASONS = 100  # each may name a class, and there may be as many as objects


_GONE = "gone: the source was listed again, and does not have this version of the object any more"


def document(
    state: State, set_aside: Mapping[str, Sequence[SetAside]], now: float
) -> dict[str, Any]:
    """Everything a person or a program may want to know, in plain JSON values; sizes in bytes."""
    ledger = state.ledger
    return {
        "version": 1,
        "cache": {
            "limit": ledger.limit,
            "used": ledger.on_disk,
            "reserved": ledger.reserved,
            "room": max(0, ledger.room),
            "stopped": state.disk.why or _crowded(state),
            "resting": state.rests(now),
            "corrupt_shards": state.corrupt_shards,
        },
        "datasets": {
            name: _dataset(state, dataset, set_aside.get(name, []), now)
            for name, dataset in sorted(state.datasets.items())
        },
        "leases": [
            {
                "lease": held.lease.id,
                "dataset": held.lease.dataset,
                "job": held.lease.job,
                "epoch": held.lease.epoch,
                "records": held.lease.num_records,
                "held": False,  # until the locks were looked at
                "ranks": held.ranks,
                "held_by": sorted(held.held_by),
                "age_s": round(now - held.since, 1),
                "retired_bytes": _retired_bytes(state, held.lease.id),
            }
            for held in sorted(state.leases.values(), key=lambda s: s.lease.id)
        ],
    }


def _dataset(
    state: State, dataset: DatasetState, set_aside: Sequence[SetAside], now: float
) -> dict[str, Any]:
    live, plan = dataset.live, dataset.plan
    served = live.served(dataset.leasable or dataset.rules.generation)
    reasons = Counter(aside.reason for aside in set_aside)
    if plan.num_gone:
        reasons[_GONE] = plan.num_gone
    return {
        "generation": dataset.rules.generation,
        "pinned": dataset.rules.pin,
        "shards": served.shards,
        "records": served.records,
        "data_bytes": served.data_bytes,
        "allocated": state.ledger.of(dataset.rules.name),
        "idle_shards": len(dataset.idle),
        "retired_shards": live.num_retired,
        "barred_shards": live.num_barred,
        "evicted_shards": dataset.evicted_shards,
        "evicted_bytes": dataset.evicted,
        "making": len(dataset.making),
        "units": plan.num_units,
        "listed": dataset.listed,
        "listing": dataset.listing.status(now),
        "coverage": round(plan.coverage, 6),
        "passes": plan.passes[0],
        "pass_done": round(plan.passes[1], 6),
        "waiting_units": plan.num_waiting,
        "waiting_shards": len(dataset.retry),
        "whole": dataset.whole,
        "first": dataset.rules.first,
        "fetched_bytes": dataset.egress,
        "bytes_per_second": round(dataset.rate.now(now)),
        "waits_for": dataset.waits_for,
        "held_back": held_back(dataset),
        "stopped": dataset.contradicted or dataset.source.why or dataset.unlisted,
        "contradicted": bool(dataset.contradicted),
        "stopped_for_s": round(now - dataset.source.since, 1) if dataset.source.reason else 0.0,
        "set_aside": {
            "units": len(set_aside) + plan.num_gone,
            "reasons": dict(reasons.most_common(_MOST_REASONS)),
            "examples": [
                {"key": aside.key, "reason": aside.reason}
                for aside in set_aside[:10]
            ],
        },
    }  # fmt: skip


def _crowded(state: State) -> str:
    """Said when there is something to fetch, and others have filled the disk."""
    ledger = state.ledger
    if not ledger.crowded or not any(d.has_work for d in state.datasets.values()):
        return ""
    return (
        f"the file system of cache.dir has no room for another shard ({ledger.footprint} bytes, two "
        "inodes) beyond cache.reserve_free: see df and df -i"
    )


def _retired_bytes(state: State, lease_id: str) -> int:
    """What would be free if this lease ended: how a holder that stays stops rotation."""
    lease = state.leases[lease_id].lease
    dataset = state.datasets.get(lease.dataset)
    return dataset.live.retired_bytes(lease.shards) if dataset else 0
