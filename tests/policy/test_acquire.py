"""Acquire and leases, step by step: simulated.py carries out the commands."""

from __future__ import annotations

import pytest

from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.values import GenerationId, Resume
from tests.policy.cache import A, Cache, a_full_cache, a_whole_cache
from tests.policy.workers import Directory, Object


def test_ranks_of_a_job_share_one_lease():
    cache = a_whole_cache()
    one, two = cache.acquire(0, rank=0, ranks=2), cache.acquire(0, rank=1, ranks=2)
    assert one.lease == two.lease


def test_grant_stands_until_all_ranks_hold_it():
    cache = a_whole_cache()
    lease = cache.acquire(0, rank=0, ranks=2).lease
    cache.hold(lease, 0)
    cache.end(lease)
    assert lease in cache.disk.manifests, "rank 1 may still come"
    cache.hold(lease, 1)
    cache.end(lease)
    assert lease not in cache.disk.manifests


def test_restart_gives_grace_only_to_leases_never_held():
    cache = a_whole_cache()
    held, never = cache.acquire(0, "x").lease, cache.acquire(0, "y").lease
    cache.hold(held)
    cache.start()
    cache.end(held)
    cache.end(never)
    assert set(cache.disk.manifests) == {never}
    cache.now += 31
    cache.end(never)
    assert not cache.disk.manifests


@pytest.mark.parametrize("seconds", [29, 31])
def test_restart_waits_for_the_ranks_that_have_not_held_the_lease(seconds):
    cache = a_whole_cache()
    lease = cache.acquire(0, rank=0, ranks=2).lease
    cache.hold(lease, 0)
    cache.start()
    cache.now += seconds
    cache.end(lease)
    assert (lease in cache.disk.manifests) == (seconds < 30)


def test_ranks_that_come_again_get_the_set_of_those_that_came_before():
    cache = a_whole_cache()
    lease = cache.acquire(0, rank=0, ranks=2).lease
    for rank in (0, 1):
        cache.hold(lease, rank)
    assert cache.acquire(0, rank=0, ranks=2).lease == lease
    cache.hold(lease, 0)
    cache.start()
    cache.end(lease)
    assert cache.acquire(0, rank=1, ranks=2).lease == lease, "its second life"


def test_job_that_is_launched_with_other_ranks_gets_one_set_for_all():
    cache = a_whole_cache()
    cache.hold(cache.acquire(0, rank=0, ranks=2).lease, 0)
    leases = {cache.acquire(0, rank=rank, ranks=4).lease for rank in range(4)}
    assert len(leases) == 1
    assert cache.disk.manifests[leases.pop()].ranks == 4


def test_shard_quarantined_before_the_grant_is_not_granted():
    cache = a_whole_cache()
    cache.send(ev.AcquireAsked("q", "a", "job", 0))
    write = cache.under_way(do.WriteManifest)[0]
    cache.disk.directories[A].shards[0, 0].intact = False
    cache.send(ev.DamageReported("d", A, 0, 0))
    cache.run(but=(do.WriteManifest,))
    assert isinstance(cache.replies["d"], do.ReplyDone)
    cache.carry_out(write)
    cache.send(ev.CommandDone(write))
    assert isinstance(cache.replies["q"], do.ReplyWaiting)


LEASES = {
    "whole": (lambda: a_whole_cache(), True),
    "full": (lambda: a_full_cache(), True),
    "full below first": (lambda: a_full_cache(first=1000), True),
    "not listed": (lambda: Cache(), False),
    "part of a pinned dataset": (lambda: a_full_cache(pin=True), False),
    "whole pinned dataset": (lambda: a_whole_cache(pin=True), True),
    "offline": (lambda: interrupted(offline=True), True),
    "egress limit": (lambda: interrupted(egress_limit=0), True),
    "interrupted": (lambda: interrupted(), False),
    "older generation": (lambda: superseded(), True),
    "empty source": (lambda: Cache(units=0), False),
}


def interrupted(**bounds: object) -> Cache:
    """A cache that was restarted before the bytes of the first lease were cached."""
    cache = a_full_cache(first=30)
    cache.rules["a"] = cache.rules["a"]._replace(first=1000)
    cache.limit = 10_000
    cache.start(**bounds)
    return cache


def superseded() -> Cache:
    """A cache with a whole generation, of which another took the place."""
    cache = a_whole_cache()
    cache.rules["a"] = cache.rules["a"]._replace(generation="two")
    cache.disk.directories[GenerationId("a", "two")] = Directory("", 1000, cache.rules["a"])
    cache.start()
    return cache


@pytest.mark.parametrize("situation", LEASES)
def test_dataset_is_leasable_if_a_job_would_get_a_set(situation):
    make, expected = LEASES[situation]
    cache = make()
    leasable = cache.policy.acquire.is_leasable(cache.policy.datasets["a"])
    cache.send(ev.AcquireAsked("q", "a", "new", 0))
    granted = bool(cache.under_way(do.WriteManifest))
    assert (leasable, granted) == (expected, expected)


def test_bad_requests_are_refused():
    cache = a_whole_cache()
    cache.send(ev.AcquireAsked("1", "no", "job", 0))
    assert cache.replies["1"].code == "unknown-dataset"
    cache.send(ev.RankHolds("2", "gone", 0))
    assert cache.replies["2"].code == "lease-lost"


def test_empty_source_is_refused():
    cache = Cache(units=0)
    cache.list_all()
    assert cache.acquire(0).code == "impossible"


def test_resumed_run_gets_its_set_again():
    cache = a_whole_cache()
    lease = cache.disk.manifests[cache.acquire(0).lease]
    cache.sources["a"]["new"] = Object(100, (4,))
    cache.list_all()
    resume = Resume("one", lease.intervals, lease.fingerprint, 0, 1, 0)
    again = cache.disk.manifests[cache.acquire(5, "again", resume=resume).lease]
    assert (again.fingerprint, again.intervals) == (lease.fingerprint, lease.intervals)
    fresh = cache.disk.manifests[cache.acquire(5, "fresh").lease]
    assert fresh.num_records == 9


@pytest.mark.parametrize("begun", [False, True])
def test_generation_without_a_shard_begins_where_a_resumed_run_was(begun):
    cache = Cache()
    if begun:
        cache.directory(A).list(sorted(cache.sources["a"]), 1 << 30)
        cache.send(cache.listed(A))
        for kind in (do.WriteShape, do.OpenStream):
            [command] = cache.under_way(kind)
            cache.pending.remove(command)
            for event in cache.carry_out(command):
                cache.send(event)
    resume = Resume("one", (), "", 77, 1, 8 + 4)  # place 12 of 8 units
    cache.acquire(5, resume=resume)
    cache.list_all()
    shape = cache.directory(A).shape
    assert (shape.seed, shape.streams) == (77, 1)
    first = min(cache.disk.directories[A].shards)
    assert cache.disk.directories[A].shards[first].before.place == 4
