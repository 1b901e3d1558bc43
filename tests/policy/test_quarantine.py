"""Damaged shards, excluded records and a disk that refuses, step by step."""

from __future__ import annotations

from cachecd.policy import commands as do
from cachecd.policy import events as ev
from tests.policy.cache import DAY, FOOTPRINT, A, Cache, a_full_cache, a_whole_cache


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


def test_exclusion_is_durable_before_the_reply():
    cache = a_whole_cache()
    cache.send(ev.ExcludeAsked("x", "a", ("003",)))
    for step in (do.WriteExclusion, do.FindHolders):
        cache.run(but=(step,))
        assert "x" not in cache.replies
    cache.run(but=(do.RemakeShard,))
    assert isinstance(cache.replies["x"], do.ReplyDone)
    assert cache.disk.open_exclusions, "a start searches again until no shard has the record"
    cache.run()
    assert not cache.disk.open_exclusions
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


def test_damaged_sidecar_costs_its_shard_and_the_older_ones_of_its_stream():
    cache = a_whole_cache()
    cache.disk.directories[A].shards[2, 0].sidecar = False
    cache.send(ev.ExcludeAsked("x", "a", ("007",)))  # a key of another shard
    cache.run()
    assert isinstance(cache.replies["x"], do.ReplyDone)
    cache.now += 5
    cache.send(ev.Tick())
    cache.run()
    numbers = cache.live()
    assert not {0, 2} & set(numbers), "the stream fetches them again"
    assert cache.disk.manifests[cache.acquire(0).lease].num_records == 7


def test_shard_whose_sidecar_is_lost_while_it_is_made_again_is_not_read_until_then():
    cache = a_whole_cache()
    shard = cache.disk.directories[A].shards[2, 0]
    key = cache.disk.directories[A].keys[shard.records[0][0]]
    cache.send(ev.ExcludeAsked("x", "a", (key,)))
    cache.run(but=(do.RemakeShard,))
    assert cache.under_way(do.RemakeShard)
    shard.sidecar = False
    assert cache.policy.shows_damage(ev.ShardLost(A, 2, 0))
    cache.send(ev.ShardLost(A, 2, 0))
    while cache.under_way(do.MarkRetired, do.Unlink):
        for event in cache.carry_out(cache.pending.pop()):
            cache.send(event)
    assert 0 not in cache.live(), "2 is the oldest shard of its stream"
    assert not cache.under_way(do.ReadCursor), "its cursor is known to be lost"
    assert not cache.policy.shows_damage(ev.ShardLost(A, 2, 0)), "it is counted once"
    cache.run()
    cache.pass_time(DAY)
    assert cache.disk.manifests[cache.acquire(0).lease].num_records == 7


def test_epoch_that_begins_retires_no_shard_that_is_being_made_again():
    cache = a_full_cache()
    cache.end(cache.epoch(0))
    number = cache.live()[0]
    cache.disk.directories[A].shards[number, 0].intact = False
    cache.send(ev.DamageReported("r", A, number, 0))
    cache.run(but=(do.RemakeShard,))
    assert cache.under_way(do.RemakeShard)
    cache.send(ev.AcquireAsked("x", "a", "job", 1, 0, 1))
    cache.run(but=(do.RemakeShard,))
    assert isinstance(cache.replies["x"], do.ReplyGranted)
    cache.run()
    assert (number, 1) in cache.disk.directories[A].shards, "it was not made in vain"


def exclude(cache: Cache, *keys: str) -> None:
    cache.send(ev.ExcludeAsked("x", "a", keys))
    cache.run()


def test_excluded_records_go_below_a_limit_that_was_lowered():
    cache = a_whole_cache(pin=True)
    cache.limit, used = -90_000, cache.used()
    cache.configure()
    exclude(cache, "000", "002", "004", "006")
    cache.pass_time(1)
    names = set(cache.disk.directories[A].shards)
    assert all((number, 0) not in names for number, version in names if version), "in turns"
    assert cache.used() < used
    assert cache.disk.manifests[cache.acquire(0).lease].num_records == 4


def test_pinned_set_is_granted_without_shards_whose_room_its_own_job_keeps():
    cache = a_whole_cache(pin=True)
    first = cache.acquire(0).lease
    cache.hold(first)
    cache.limit = cache.used() + FOOTPRINT  # one footprint is kept back, nothing else
    cache.configure()
    exclude(cache, *sorted(cache.sources["a"])[:4])
    waiting = cache.acquire(0, "other")
    assert isinstance(waiting, do.ReplyWaiting)
    assert first in waiting.reason, "the true reason"
    granted = cache.acquire(1)
    assert "missing from the set" in granted.note
    cache.hold(granted.lease)
    cache.end(first)
    cache.pass_time(1)
    cache.end(granted.lease)
    cache.pass_time(1)
    after = cache.acquire(2)
    assert (after.note, cache.disk.manifests[after.lease].num_records) == ("", 4)


def refuse_manifest(cache: Cache) -> None:
    write = cache.under_way(do.WriteManifest)[0]
    cache.pending.remove(write)
    cache.send(ev.DiskRefused(write, "no space left"))
    cache.run()


def test_job_repeats_its_set_on_all_ranks_if_no_manifest_can_be_written():
    cache = a_whole_cache()
    for rank in (0, 1):
        lease = cache.acquire(0, rank=rank, ranks=2).lease
        cache.hold(lease, rank)
    cache.send(ev.AcquireAsked("q", "a", "job", 1, 0, 2))
    refuse_manifest(cache)
    assert (cache.replies["q"].lease, "no space left" in cache.replies["q"].note) == (lease, True)
    cache.now += 20
    cache.start()  # the disk has room again
    late = cache.acquire(1, rank=1, ranks=2)
    assert late.lease == lease
    cache.hold(lease, 0)
    cache.end(lease)
    assert lease in cache.disk.manifests, "rank 1 may still come"
    assert cache.acquire(2, ranks=2).lease != lease


def test_set_that_nobody_holds_is_not_granted_again_with_an_excluded_record():
    cache = a_whole_cache()
    lease = cache.acquire(0, rank=0, ranks=2).lease
    cache.hold(lease, 0)
    exclude(cache, "003")
    cache.end(lease)
    other = cache.acquire(0, rank=1, ranks=2).lease
    assert cache.disk.manifests[other].num_records == 7


def test_set_keeps_a_shard_if_all_hold_excluded_records_below_a_lowered_limit():
    cache = a_whole_cache(pin=True)
    first = cache.acquire(0).lease
    cache.hold(first)
    cache.limit = -90_000
    cache.configure()
    exclude(cache, *(f"{n:03d}" for n in range(0, 8, 2)))
    second = cache.acquire(1).lease
    assert cache.disk.manifests[second].num_records > 0, "no deadlock"
    cache.hold(second)
    cache.end(first)
    cache.pass_time(1)
    cache.end(second)
    cache.pass_time(1)
    assert cache.disk.manifests[cache.acquire(2).lease].num_records == 4


def test_set_with_an_excluded_record_is_not_repeated():
    cache = a_whole_cache()
    cache.hold(cache.acquire(0).lease)
    exclude(cache, "003")
    cache.send(ev.AcquireAsked("q", "a", "job", 1))
    refuse_manifest(cache)
    assert isinstance(cache.replies["q"], do.ReplyWaiting)


def test_disk_that_refuses_a_manifest_makes_a_job_without_a_set_wait():
    cache = a_whole_cache()
    cache.send(ev.AcquireAsked("q", "a", "job", 0))
    write = cache.under_way(do.WriteManifest)[0]
    cache.pending.remove(write)
    cache.send(ev.DiskRefused(write, "no space left"))
    assert cache.replies["q"].reason == "no space left"
    cache.now += 5
    assert isinstance(cache.acquire(0, "again"), do.ReplyGranted)
