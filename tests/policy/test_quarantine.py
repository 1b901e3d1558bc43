"""Damaged shards, excluded records and a disk that refuses, step by step."""

from __future__ import annotations

from cachecd.policy import commands as do
from cachecd.policy import events as ev
from tests.policy.cache import A, a_whole_cache


def test_false_report_costs_nothing():
    cache = a_whole_cache()
    cache.send(ev.DamageReported("r", A, 0, 0))
    cache.run()
    assert isinstance(cache.replies["r"], do.ReplyDone)
    assert cache.disk.manifests[cache.acquire(0).lease].num_records == 8


def test_damaged_shard_is_made_again_while_a_lease_names_it():
    cache = a_whole_cache()
    lease = cache.acquire(0).lease
    cache.hold(lease)
    cache.disk.directories[A].shards[2, 0].intact = False
    cache.send(ev.DamageReported("r", A, 2, 0))
    cache.run()
    assert {(2, 0), (2, 1)} <= set(cache.disk.directories[A].shards)
    again = cache.disk.manifests[cache.acquire(1).lease]
    assert again.versions == ((2, 1),)
    assert again.fingerprint == cache.disk.manifests[lease].fingerprint, "it names content"
    cache.end(lease)
    assert (2, 0) not in cache.disk.directories[A].shards


def test_shard_that_cannot_be_made_again_is_tried_later():
    cache = a_whole_cache()
    cache.disk.directories[A].shards[2, 0].intact = False
    cache.send(ev.DamageReported("r", A, 2, 0))
    cache.run(but=(do.RemakeShard,))
    cache.pending.clear()
    cache.send(ev.RemakeFailed(A, 2, "the store refuses"))
    assert not cache.under_way(do.RemakeShard), "after a pause"
    cache.now += 3600
    cache.send(ev.Tick())
    cache.run()
    assert cache.disk.manifests[cache.acquire(0).lease].versions == ((2, 1),)


def test_excluded_record_is_copied_away_before_the_reply():
    cache = a_whole_cache()
    cache.send(ev.ExcludeAsked("x", "a", ("003",)))
    cache.run(but=(do.MarkBad,))
    assert "x" not in cache.replies
    cache.run()
    assert isinstance(cache.replies["x"], do.ReplyDone)
    assert cache.disk.manifests[cache.acquire(0).lease].num_records == 7


def test_excluded_record_in_a_shard_being_retired_does_not_come_back_with_a_kill():
    cache = a_whole_cache()
    cache.hold(cache.acquire(0).lease)
    shard = cache.disk.directories[A].shards[2, 0]
    shard.intact = shard.sidecar = False
    cache.send(ev.DamageReported("r", A, 2, 0))
    cache.run(but=(do.MarkRetired,))  # of 0 and 2
    key = cache.disk.directories[A].keys[cache.disk.directories[A].shards[0, 0].records[0][0]]
    cache.send(ev.ExcludeAsked("x", "a", (key,)))
    cache.run(but=(do.MarkRetired,))
    assert isinstance(cache.replies["x"], do.ReplyDone)
    assert (0, 0) in cache.disk.directories[A].bad


def test_disk_that_refuses_a_manifest_makes_the_rank_wait():
    cache = a_whole_cache()
    cache.send(ev.AcquireAsked("q", "a", "job", 0))
    write = cache.under_way(do.WriteManifest)[0]
    cache.pending.remove(write)
    cache.send(ev.DiskRefused(write, "no space left"))
    assert cache.replies["q"].reason == "no space left"
    cache.now += 5
    assert isinstance(cache.acquire(0, "again"), do.ReplyGranted)
