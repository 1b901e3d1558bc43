"""The policy, situation by situation: events in, commands out. No disk, no clock."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cachecd import events as ev
from cachecd.acquire import GRACE, LeaseState
from cachecd.ledger import Ledger
from cachecd.model import Lease, Outcome, ShardId
from cachecd.rules import DatasetRules
from cachecd.state import State
from tests.world import FOOTPRINT, SHARD_SIZE, UNIT, Units, World, granted, numbers, train, world


def test_acquire_waits_with_figures_until_first_is_reached():
    w = world(first=2 * 3 * UNIT)
    reply = w.acquire("train", "job", 0)
    assert isinstance(reply, ev.ReplyWaiting)
    assert (reply.have_bytes, reply.want_bytes) == (0, 2 * 3 * UNIT)
    w.settle()
    granted(w.acquire("train", "job", 0))


def test_every_rank_of_a_job_gets_the_same_set_while_the_cache_grows():
    w = world(first=SHARD_SIZE // 2)
    w.make(ShardId("train", 1))
    w.publish(ShardId("train", 1))
    first = granted(w.acquire("train", "job", 0, rank=0, world=2))
    w.settle()
    assert granted(w.acquire("train", "job", 0, rank=1, world=2)) == first
    assert len(numbers(w, granted(w.acquire("train", "job", 1, 0, 2)))) > len(numbers(w, first))


def test_a_grant_says_what_share_of_the_source_was_handed_out():
    w = world(units=12, first=SHARD_SIZE // 2)
    w.make(ShardId("train", 1))
    w.publish(ShardId("train", 1))
    reply = w.acquire("train", "job", 0)
    assert reply.coverage == w.state.datasets["train"].plan.coverage > 0
    w.settle()
    assert w.acquire("train", "job", 1).coverage == 1


def test_an_unknown_dataset_is_refused_with_the_names_of_those_served():
    reply = world().acquire("trian", "job", 0)
    assert isinstance(reply, ev.ReplyRefused)
    assert reply.code == "unknown-dataset"
    assert "train" in reply.message


def test_a_rank_outside_its_world_is_refused():
    reply = world().acquire("train", "job", 0, rank=2, world=2)
    assert isinstance(reply, ev.ReplyRefused)
    assert reply.code == "bad-request"


def test_below_the_limit_nothing_is_retired():
    w = world(shards=8, per_epoch=3 * UNIT)
    w.settle()
    for epoch in range(3):
        before = set(w.disk)
        granted(w.acquire("train", "job", epoch))
        w.settle()
        assert before < set(w.disk)


def test_per_epoch_bounds_what_an_epoch_adds():
    w = world(shards=20, first=3 * UNIT, per_epoch=2 * 3 * UNIT)
    w.settle()
    sizes = []
    for epoch in range(4):
        sizes.append(len(numbers(w, granted(w.acquire("train", "job", epoch)))))
        w.settle()
    grown = [b - a for a, b in pairwise(sizes)]
    assert all(1 <= g <= 2 for g in grown), sizes


def test_a_restart_within_an_epoch_goes_on_with_its_growth():
    w = world(shards=20, first=3 * UNIT, per_epoch=2 * 3 * UNIT)
    w.settle()
    lease = w.manifests[granted(w.acquire("train", "job", 0))]
    (number,) = numbers(w, lease.id)  # what the epoch may add is still to come

    w.restart()
    w.settle()
    assert len(w.disk) == 3
    assert w.state.datasets["train"].live[number].read, "rotation may have it"


def test_at_the_limit_the_oldest_are_retired_and_kept_until_their_last_lease_ends():
    w = world(shards=8)
    w.settle()
    old = granted(w.acquire("train", "job", 0))
    held = set(numbers(w, old))
    new = granted(w.acquire("train", "job", 1))
    retired = set(numbers(w, old)) - set(numbers(w, new))
    assert retired
    assert retired == set(sorted(held)[: len(retired)])
    w.settle()
    assert {ShardId("train", n) for n in retired} <= set(w.disk)
    w.drop(old)
    w.settle()
    assert not {ShardId("train", n) for n in retired} & set(w.disk)
    assert max(s.number for s in w.disk) > max(held)


def test_two_jobs_together_retire_no_more_than_refresh():
    w = world(shards=8, refresh=0.25)
    w.settle()
    leases = [granted(w.acquire("train", job, e)) for e in range(5) for job in ("a", "b")]
    w.settle()
    live = w.state.datasets["train"].live
    retired = sum(s.shard.allocated for s in live.values() if s.retired)
    assert 0 < retired <= 0.25 * w.state.ledger.limit
    for lease in leases:
        w.drop(lease)
    w.settle()
    assert not any(s.retired for s in live.values())


def test_when_everything_is_cached_ingest_and_rotation_stop():
    w = world(shards=20, units=12)
    w.settle()
    assert w.state.datasets["train"].whole
    before = set(w.disk)
    for epoch in range(3):
        lease = granted(w.acquire("train", "job", epoch))
        w.settle()
        assert w.manifests[lease].num_records == 12 * 4
    assert set(w.disk) == before


def test_a_source_smaller_than_first_is_leased_when_it_is_whole():
    w = world(shards=20, units=2, first=10 * SHARD_SIZE)
    w.settle()
    assert w.manifests[granted(w.acquire("train", "job", 0))].num_records == 8


def test_an_empty_source_is_refused_instead_of_waited_for():
    reply = world(units=0).acquire("train", "job", 0)
    assert isinstance(reply, ev.ReplyRefused)
    assert reply.code == "impossible"


def test_a_grant_nobody_locks_stands_for_its_grace_and_then_ends():
    w = world()
    w.settle()
    w.feed(ev.AcquireAsked("r", "train", "job", 0))
    lease = granted(w.replies.pop("r"))
    w.now += GRACE - 1
    w.feed(ev.LeaseUnheld(lease))
    assert lease in w.manifests
    w.now += 2
    w.feed(ev.LeaseUnheld(lease))
    assert lease not in w.manifests


def test_once_all_ranks_have_held_it_a_lease_ends_with_its_locks_at_once():
    w = world()
    w.settle()
    lease = granted(w.acquire("train", "job", 0, rank=0, world=2))
    w.locks[lease].clear()
    w.feed(ev.LeaseUnheld(lease))
    assert lease in w.manifests
    assert granted(w.acquire("train", "job", 0, rank=1, world=2)) == lease
    w.locks[lease].clear()
    w.feed(ev.LeaseUnheld(lease))
    assert lease not in w.manifests


def test_a_late_rank_keeps_the_grace_running():
    w = world()
    w.settle()
    lease = granted(w.acquire("train", "job", 0, rank=0, world=2))
    w.now += GRACE - 1
    w.feed(ev.AcquireAsked("late", "train", "job", 0, 1, 2))
    w.locks[lease].clear()
    w.now += GRACE - 1
    w.feed(ev.LeaseUnheld(lease))
    assert lease in w.manifests
    w.now += 1
    w.feed(ev.LeaseUnheld(lease))
    assert lease not in w.manifests


def test_holding_an_ended_lease_is_refused_as_lost():
    w = world()
    w.feed(ev.RankHolds("r", "train.0.gone.1", 0))
    reply = w.replies.pop("r")
    assert isinstance(reply, ev.ReplyRefused)
    assert reply.code == "lease-lost"


def test_pinned_datasets_fill_first_and_are_leased_only_when_whole():
    pinned = DatasetRules("eval", "1-e", first=SHARD_SIZE, pin=True)
    w = World(
        12 * FOOTPRINT, {pinned: Units([UNIT] * 12), train(first=3 * UNIT): Units([UNIT] * 500)}
    )
    assert {s.dataset for s in w.making} == {"eval"}
    assert isinstance(w.acquire("eval", "job", 0), ev.ReplyWaiting)
    for _ in range(3):
        shard = min(s for s in w.making if s.dataset == "eval")
        w.make(shard)
        w.publish(shard)
        trained = [s for s in w.disk if s.dataset == "train"]
        assert len(trained) + sum(s.dataset == "train" for s in w.making) <= 2
    w.settle()
    assert w.manifests[granted(w.acquire("eval", "job", 0))].num_records == 48
    for epoch in range(4):
        granted(w.acquire("train", "job", epoch))
        w.settle()
    assert w.manifests[granted(w.acquire("eval", "job", 9))].num_records == 48


def test_a_pinned_dataset_that_cannot_fit_is_refused_with_the_limit_that_would_do():
    pinned = DatasetRules("eval", "1-e", first=SHARD_SIZE, pin=True)
    w = World(3 * FOOTPRINT, {pinned: Units([UNIT] * 500)})
    w.settle()
    reply = w.acquire("eval", "job", 0)
    assert isinstance(reply, ev.ReplyRefused)
    assert reply.code == "impossible"
    assert "raise cache.limit" in reply.message


def test_every_datasets_first_is_reserved_against_the_others():
    other = DatasetRules("zeta", "1-z", first=2 * SHARD_SIZE)
    w = World(8 * FOOTPRINT, {train(): Units([UNIT] * 500), other: Units([])}, unlisted={"zeta"})
    w.settle()
    assert w.state.ledger.of("train") <= 6 * FOOTPRINT
    w.state.datasets["zeta"].plan._units.append([UNIT] * 100)
    w.feed(ev.Listed("zeta", complete=True))
    w.settle()
    granted(w.acquire("zeta", "job", 0))


def test_a_source_that_fails_is_tried_again_later_and_the_room_is_given_back():
    w = world()
    for shard in list(w.making):
        w.fail(shard, "source")
    assert w.state.ledger.reserved == 0
    reply = w.acquire("train", "job", 0)
    assert isinstance(reply, ev.ReplyWaiting)
    assert reply.reason == "it failed"
    w.tick(120)
    assert set(w.making) == {ShardId("train", 1)}  # one tries, and when something comes, all do
    w.feed(ev.ShardProgressed(ShardId("train", 1), 1))
    assert set(w.making) == {ShardId("train", 1), ShardId("train", 2)}


def test_a_failing_disk_stops_ingest_but_not_leases_and_ingest_resumes():
    w = world(first=3 * UNIT)
    w.make(ShardId("train", 1))
    w.publish(ShardId("train", 1))
    for shard in list(w.making):
        w.fail(shard, "disk")
    assert not w.making
    granted(w.acquire("train", "job", 0))
    assert w.state.disk.reason == "it failed"
    w.tick(120)
    assert w.making
    w.settle()
    assert w.state.disk.reason == ""


def test_a_unit_on_which_two_workers_died_is_set_aside():
    w = world(workers=1)
    shard = ShardId("train", 1)
    poison = w.making[shard].units[1].unit
    for _ in range(2):
        while shard not in w.making:
            w.tick()
            for other in set(w.making) - {shard}:
                w.make(other)
                w.publish(other)
        w.fail(shard, "worker", poison)
    w.tick()
    assert [a.unit for a in w.set_aside] == [poison]
    w.settle()
    assert not any((poison, 0) in records for records in w.disk.values())


def test_an_assignment_of_which_nothing_could_be_made_costs_no_room():
    w = world()
    shard = ShardId("train", 1)
    w.make(shard, Outcome(0, 0, 0, 0, 100, 1.0))
    assert not w.state.ledger.is_reserved(shard)
    w.settle()
    assert shard not in w.disk


def test_a_corrupt_shard_is_barred_at_once_unlinked_when_unheld_and_fetched_again():
    w = world(shards=20, units=12)
    w.settle()
    lease = granted(w.acquire("train", "job", 0))
    bad = ShardId("train", 1)
    w.feed(ev.CorruptReported(bad))
    assert bad.number not in numbers(w, granted(w.acquire("train", "job", 1)))
    w.verified(bad, sound=False)
    assert bad in w.disk
    w.drop(lease)
    w.settle()
    assert bad not in w.disk
    assert w.manifests[granted(w.acquire("train", "job", 2))].num_records == 48


def test_a_false_alarm_brings_the_shard_back():
    w = world(shards=20, units=12)
    w.settle()
    w.feed(ev.CorruptReported(ShardId("train", 1)))
    w.settle()
    assert 1 in numbers(w, granted(w.acquire("train", "job", 0)))


@pytest.mark.parametrize("slow_first", [True, False])
def test_with_wait_an_epoch_holds_the_plans_shards_whatever_the_timing(slow_first):
    w = world(shards=30, first=2 * 3 * UNIT, per_epoch=3 * UNIT, wait=True)
    for _ in range(40):
        if not w.making:
            break
        shard = (max if slow_first else min)(w.making)
        w.make(shard)
        w.publish(shard)
    sets = []
    for epoch in range(3):
        sets.append(numbers(w, granted(w.acquire("train", "job", epoch))))
        w.settle()
    assert sets == [[1, 2], [1, 2, 3], [1, 2, 3, 4]]


def test_a_new_generation_is_served_only_once_it_is_ready_and_then_alone():
    w = world(shards=8, units=1000)
    w.settle()
    old = granted(w.acquire("train", "job", 0))
    w.rules["train"] = DatasetRules("train", "2-b", first=2 * 3 * UNIT)
    w.restart()
    dataset = w.state.datasets["train"]
    seen = []
    for epoch in range(1, 12):
        lease = granted(w.acquire("train", "job", epoch))
        seen.append(w.manifests[lease].generation)
        made = {dataset.live[n].shard.generation for n in numbers(w, lease)}
        assert made == {seen[-1]}
        w.drop(old)
        old = lease
        w.settle()
    assert seen[0] == "1-a"
    assert seen[-1] == "2-b"
    assert seen == sorted(seen)


def test_only_ranks_that_there_are_can_hold_a_lease():
    w = world(shards=8)
    w.settle()
    lease = granted(w.acquire("train", "job", 0, 0, 2))
    for rank in (-1, 2, 10**9):
        w.feed(ev.RankHolds("r", lease, rank))
        assert w.replies.pop("r").code == "bad-request"
    assert w.state.leases[lease].held_by == {0}


# --- how long a grant stands without a lock

LEASE = Lease("l", "train", "job", 0, "g", ((1, 2),), 2, 2, 1, False, "f")


@pytest.fixture
def lease() -> LeaseState:
    return LeaseState(LEASE, grace_until=GRACE, since=0.0)


def test_after_a_restart_no_rank_that_says_it_holds_ends_the_grace_of_the_others(lease):
    """Who was granted the lease by the daemon before is not known: its ranks may all be about to
    lock it."""
    for rank in range(4):
        lease.held_by.add(rank)
    assert lease.stands_without_lock(GRACE - 0.1)
    assert not lease.stands_without_lock(GRACE)


def test_after_a_restart_a_rank_that_asks_tells_how_many_there_are(lease):
    lease.asked(1, 2, now=0.0)
    lease.held_by |= {0, 1}
    assert not lease.stands_without_lock(1.0)


def test_a_lease_found_by_a_restart_stands_for_a_fresh_grace_and_keeps_its_age():
    state = State(Ledger(1 << 30, 1 << 20), 1 << 20, workers=1, boot="b")
    state.adopt_lease(LEASE, now=100.0, age=3600.0)
    assert state.leases["l"].since == 100.0 - 3600.0
    assert state.handle(ev.RankHolds("r", "l", 0), 101.0) == [ev.ReplyDone("r")]
    assert state.handle(ev.LeaseUnheld("l"), 100.0 + GRACE - 0.1) == []
    assert state.handle(ev.LeaseUnheld("l"), 100.0 + GRACE) == [ev.EndLease("l")]
