"""What the policy does at an event does not grow with the cache; counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from cachecd import events as ev
from cachecd.dataset import DatasetState
from cachecd.ledger import BLOCK, Ledger
from cachecd.model import ShardId
from cachecd.plan import Plan
from cachecd.rules import DatasetRules
from cachecd.shardtable import ROW
from cachecd.state import State
from cachecd.status import document
from tests.world import FOOTPRINT, SHARD_SIZE, Units

FEW, MANY = 100, 4000


def state_of(shards: int, jobs: int = 20) -> State:
    """A cache at its limit, of which one shard of ten is retired, with a lease for each job."""
    state = State(Ledger(1 << 50, FOOTPRINT), SHARD_SIZE, 2, "b")
    rules = DatasetRules("train", "g", first=1000)
    dataset = DatasetState(rules, Plan("train", "g", Units([1000] * (2 * shards)), 0, SHARD_SIZE))
    dataset.described = dataset.listed = True
    dataset.plan.extend()
    state.add_dataset(dataset)
    rows = np.zeros(shards, ROW)
    rows["number"] = np.arange(1, shards + 1)
    rows["records"] = rows["data_bytes"] = 100
    rows["allocated"] = BLOCK
    state.adopt_shards("train", ["g"], rows)
    dataset.plan.skip_to(shards, 0)
    dataset.plan.hold(np.arange(shards))
    state.ledger.limit = state.ledger.used
    for job in range(jobs):
        acquire(state, f"job-{job}", 0)
    dataset.live.retire(np.arange(1, shards // 10))
    return state


def acquire(state: State, job: str, epoch: int) -> list[ev.Command]:
    commands = state.handle(ev.AcquireAsked("r", "train", job, epoch), 0.0)
    assert any(isinstance(c, ev.ReplyGranted) for c in commands)
    return commands


def calls(do: Callable[[], object]) -> int:
    """How many functions, C's included, this calls."""
    count = 0

    def note(_: FrameType, what: str, __: Any) -> None:
        nonlocal count
        count += what in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        do()
    finally:
        sys.setprofile(before)
    return count


LEASE_ENDS = "a lease ends"
EVENTS: dict[str, Callable[[State], object]] = {
    "the clock ticks": lambda s: s.handle(ev.Tick(), 1.0),
    "the disk is measured": lambda s: s.handle(ev.MetadataMeasured(0), 1.0),
    "an epoch begins": lambda s: acquire(s, "job-0", 1),
    "a rank asks again": lambda s: acquire(s, "job-0", 0),
    LEASE_ENDS: lambda s: s.handle(ev.LeaseEnded(next(iter(s.leases))), 1.0),
    "a shard is reported corrupt": lambda s: s.handle(
        ev.CorruptReported(ShardId("train", 50)), 1.0
    ),
    "status is asked for": lambda s: document(s, {}, 1.0),
}


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_costs_no_more_calls_however_many_shards_there_are(event):
    do = EVENTS[event]
    few, many = (state_of(shards) for shards in (FEW, MANY))
    for state in (few, many):
        do(state) if event != LEASE_ENDS else None  # what is found out once is known
    assert calls(lambda: do(many)) <= calls(lambda: do(few)) + 10


def test_a_lease_names_ranges_and_not_shards():
    lease = next(
        c.lease for c in acquire(state_of(MANY), "a", 9) if isinstance(c, ev.WriteManifest)
    )
    assert lease.shards == ((MANY // 10, MANY),)
    assert lease.num_records == 100 * (MANY - MANY // 10 + 1)
