"""What an event costs with 100,000 shards: the least of several tries, for the machine may be busy."""

from __future__ import annotations

import time

import pytest

from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.policy import Policy
from cachecd.policy.values import GenerationId, Head, Rules, ShardFacts
from cachecd.stream import Cursor, Lane, Shape, StreamId

NAME = GenerationId("train", "g")
SIZE, STREAMS = 64, 8
MS = 1e-3


def a_policy(shards: int) -> Policy:
    """A full cache of so many shards; a trainer has held and delivered a set."""
    policy, shape = Policy(), Shape(STREAMS, 32, 16, SIZE, 0)
    footprint = SIZE + 3
    limit = (shards + 1) * footprint + 1_000_000
    rules = Rules("train", "g", 1, SIZE, refresh=0.25)
    facts = ShardFacts(footprint, 10, SIZE, 5, 12345)
    numbers = [j * (STREAMS + 1) + s for j in range(shards // STREAMS) for s in range(STREAMS)]
    lanes = tuple(Lane(9, place, place, 1, SIZE) for place in range(16))
    heads = [Head(shards // STREAMS, Cursor(0, 9, 16, lanes))] * STREAMS + [Head(0, Cursor())]
    found = ev.GenerationFound(
        NAME, "", shape, tuple(heads), tuple(ev.ShardFound(number, facts) for number in numbers)
    )
    ends = tuple(256 * (2**block - 1) for block in range(1, 16))
    for event in (
        ev.Configured(limit, (rules,), block=1),
        found,
        ev.Listed(NAME, ends, ends[-1], ends[-1] * SIZE, False, 1),
        ev.Measured(0, 1_000_000),
        ev.Started(),
    ):
        out = policy.handle(event, 0.0)
    for command in out:
        if isinstance(command, do.ReadCursor):
            policy.handle(ev.CursorRead(NAME, command.number, Cursor()), 0.0)
    return policy


def acquire(policy: Policy, epoch: int) -> tuple[float, str, list[do.Command]]:
    """The seconds that an Acquire takes, and the lease; the lease before is delivered and given back."""
    begun = time.perf_counter()
    out = policy.handle(ev.AcquireAsked(f"a{epoch}", "train", "job", epoch), 0.0)
    seconds = time.perf_counter() - begun
    write = next(command for command in out if isinstance(command, do.WriteManifest))
    policy.handle(ev.Done(write), 0.0)
    policy.handle(ev.RankHolds(f"h{epoch}", write.lease.id, 0), 0.0)
    policy.handle(ev.Delivered(write.lease.id, 1.0), 0.0)
    return seconds, write.lease.id, out


@pytest.fixture(scope="module")
def large() -> Policy:
    return a_policy(100_000)


def test_acquire_of_a_large_set_takes_milliseconds(large):
    tries = []
    for epoch in range(5):
        seconds, lease, _ = acquire(large, epoch)
        tries.append(seconds)
        large.handle(ev.Measured(0, 1_000_000), 0.0)
        large.handle(ev.LeaseEnded(lease), 0.0)
    assert min(tries) < 10 * MS


def test_each_event_takes_a_few_hundred_microseconds(large):
    stream = StreamId("train", "g", 0)
    number = next(
        STREAMS + 1 for _ in range(1)
    )  # any: the event is looked up, and everything is pumped
    events = [
        ev.Tick(),
        ev.HalfFull(stream, number),
        ev.Measured(0, 1_000_000),
        ev.Listed(NAME, tuple(256 * (2**b - 1) for b in range(1, 16)), 10**6, 10**9, False, 1),
    ]
    for event in events:
        tries = []
        for _ in range(20):
            begun = time.perf_counter()
            large.handle(event, 0.0)
            tries.append(time.perf_counter() - begun)
        assert min(tries) < 0.5 * MS, event


def test_boundary_costs_what_it_retires():
    """One shard goes; a hundred times as many shards make the retiring no slower than the set's sum."""
    seconds = {}
    for shards in (1_000, 100_000):
        policy, tries = a_policy(shards), []
        for _ in range(6):
            dataset = policy.datasets["train"]
            dataset.was_held, dataset.rotation.delivered = True, 1.0 * (SIZE + 3)
            begun = time.perf_counter()
            out: list[do.Command] = []
            policy.leases.boundary(dataset, True, out)
            tries.append(time.perf_counter() - begun)
            assert out, "something is retired"
        seconds[shards] = min(tries)
    assert seconds[100_000] < 5 * seconds[1_000] + 0.2 * MS
