"""The policy where it once waited for ever, forgot, or gave too little: each case as it was met."""

from __future__ import annotations

import pytest

from cachecd import events as ev
from cachecd.model import ShardId
from cachecd.rules import DatasetRules
from tests.world import FOOTPRINT, SHARD_SIZE, UNIT, Units, World, granted, numbers, train, world


def test_with_wait_a_job_may_begin_at_a_later_epoch():
    w = world(shards=30, first=3 * UNIT, per_epoch=3 * UNIT, wait=True)
    w.settle()
    assert isinstance(w.acquire("train", "job", 3), ev.ReplyWaiting)
    w.settle()
    assert numbers(w, granted(w.acquire("train", "job", 3))) == [1, 2, 3, 4]


def pinned_world(units: int = 9, shards: int = 8) -> World:
    rules = DatasetRules("eval", "1-e", first=SHARD_SIZE, pin=True)
    w = World(shards * FOOTPRINT, {rules: Units([UNIT] * units)})
    w.settle()
    return w


def test_a_pinned_set_is_not_whole_while_a_shard_of_it_is_being_verified():
    w = pinned_world()
    w.feed(ev.CorruptReported(ShardId("eval", 2)))
    reply = w.acquire("eval", "job", 0)
    assert isinstance(reply, ev.ReplyWaiting)
    assert "being verified" in reply.reason
    w.verified(ShardId("eval", 2), sound=True)
    assert numbers(w, granted(w.acquire("eval", "job", 0))) == [1, 2, 3]


def test_a_corrupt_shard_of_a_pinned_set_is_replaced_though_a_lease_still_holds_it():
    w = pinned_world()
    granted(w.acquire("eval", "job", 0))
    w.found_corrupt(ShardId("eval", 2))
    w.settle()
    again = granted(w.acquire("eval", "job", 1))
    assert numbers(w, again) == [1, 3, 4]
    assert w.manifests[again].num_records == 36


def test_with_wait_a_shard_under_verification_is_waited_for():
    w = world(shards=30, first=3 * 3 * UNIT, per_epoch=0, wait=True)
    w.settle()
    w.feed(ev.CorruptReported(ShardId("train", 2)))
    assert isinstance(w.acquire("train", "job", 0), ev.ReplyWaiting)
    w.settle()
    assert numbers(w, granted(w.acquire("train", "job", 0))) == [1, 2, 3]


def test_the_only_shard_under_verification_is_waited_for():
    w = world(units=2, first=UNIT)
    w.settle()
    w.feed(ev.CorruptReported(ShardId("train", 1)))
    assert isinstance(w.acquire("train", "job", 0), ev.ReplyWaiting)


def test_a_reload_that_raises_first_lets_the_dataset_grow_to_it():
    w = world(shards=20, first=3 * UNIT, per_epoch=0)
    w.settle()
    w.reconfigure(w.limit, train(first=4 * 3 * UNIT, per_epoch=0))
    w.settle()
    w.tick()
    w.settle()
    assert len(numbers(w, granted(w.acquire("train", "job", 0)))) == 4


def test_a_reload_that_drops_per_epoch_lets_the_dataset_fill_the_cache():
    w = world(shards=8, first=3 * UNIT, per_epoch=0)
    w.settle()
    w.reconfigure(w.limit, train())
    w.tick()
    w.settle()
    assert len(w.disk) > 6


def test_a_limit_lowered_below_what_is_cached_is_reached_epoch_by_epoch():
    w = world(shards=20, units=30, refresh=0.5)
    w.settle()
    assert w.state.datasets["train"].whole
    lower = w.state.ledger.metadata + 6 * FOOTPRINT
    last = None
    w.reconfigure(lower, train(refresh=0.5))
    for epoch in range(8):
        lease = granted(w.acquire("train", "job", epoch))
        if last:
            w.drop(last)
        last = lease
        w.settle()
    assert w.state.ledger.used + w.state.ledger.reserved <= lower


def test_a_pinned_datasets_old_generation_makes_room_for_the_new():
    w = pinned_world(units=18, shards=8)
    w.rules["eval"] = DatasetRules("eval", "2-e", first=SHARD_SIZE, pin=True)
    w.restart()
    w.tick()
    w.settle()
    lease = w.manifests[granted(w.acquire("eval", "job", 0))]
    assert (lease.generation, lease.num_records) == ("2-e", 72)


def test_retired_shards_that_no_lease_names_after_a_restart_go_by_themselves():
    w = world(units=30)
    w.settle()
    w.rows.retire("train", [1])
    w.restart()
    w.tick()
    w.settle()
    assert ShardId("train", 1) not in w.disk


def test_rotation_takes_no_more_than_could_come_in_its_place():
    w = world(shards=8, units=35)
    w.settle()
    first = granted(w.acquire("train", "job", 0))
    assert w.manifests[first].num_records == 33 * 4
    granted(w.acquire("train", "job", 1))
    assert sum(s.retired for s in w.state.datasets["train"].live.values()) == 1


def test_offline_serves_what_is_cached_and_refuses_what_cannot_come():
    w = world(first=10 * SHARD_SIZE, shards=20)
    w.make(ShardId("train", 1))
    w.publish(ShardId("train", 1))
    w.state._offline = w.state._draining = True
    assert numbers(w, granted(w.acquire("train", "job", 0))) == [1]
    empty = world()
    empty.state._offline = empty.state._draining = True
    reply = empty.acquire("train", "job", 0)
    assert isinstance(reply, ev.ReplyRefused)
    assert "--offline" in reply.message


def test_a_thousand_dead_workers_in_a_row_are_outlived():
    w = world(workers=1)
    for _ in range(1100):
        shard = next(iter(w.making))
        w.fail(shard, "worker")
        w.tick(61)
    w.settle()
    assert ShardId("train", 1) in w.disk


def test_a_datasets_own_limit_is_named_where_it_is_the_bound():
    rules = DatasetRules("eval", "1-e", first=SHARD_SIZE, pin=True, limit=2 * FOOTPRINT)
    w = World(20 * FOOTPRINT, {rules: Units([UNIT] * 30)})
    w.settle()
    reply = w.acquire("eval", "job", 0)
    assert isinstance(reply, ev.ReplyRefused)
    assert "raise datasets.eval.limit" in reply.message


def test_an_epoch_beyond_all_numbers_is_refused():
    reply = world().acquire("train", "job", 10**4000)
    assert isinstance(reply, ev.ReplyRefused)
    assert reply.code == "bad-request"


@pytest.mark.parametrize("delivered", [0, 500])
def test_what_nobody_has_read_makes_room_for_a_pinned_dataset_that_is_added(delivered):
    others = DatasetRules("train", "1-a", first=SHARD_SIZE)
    pinned = DatasetRules("eval", "1-e", first=SHARD_SIZE, pin=True)
    w = World(20 * FOOTPRINT, {others: Units([UNIT] * 900)})
    w.reads_at_once = False
    w.settle()
    lease = granted(w.acquire("train", "job", 0))
    w.deliver(lease, delivered)
    w.drop(lease)
    w.configure(pinned, Units([UNIT] * 12))
    w.restart()
    for _ in range(20):
        reply = w.acquire("eval", "job", 0)
        if isinstance(reply, ev.ReplyGranted):
            return
        assert isinstance(reply, ev.ReplyWaiting), reply
        w.settle()
        w.tick(60)
        w.settle()
    raise AssertionError(f"never: {reply}")


def test_what_is_lost_is_made_again_with_wait_though_a_pinned_dataset_never_fits():
    others = DatasetRules("train", "1-a", first=SHARD_SIZE, per_epoch=0, wait=True)
    pinned = DatasetRules("eval", "1-e", first=SHARD_SIZE, pin=True)
    w = World(6 * FOOTPRINT, {others: Units([UNIT] * 90), pinned: Units([UNIT] * 90)})
    w.settle()
    first = numbers(w, granted(w.acquire("train", "job", 0)))
    for lease in list(w.manifests):
        w.drop(lease)
    for number in first:
        w.found_corrupt(ShardId("train", number))
        w.settle()
    w.acquire("train", "job", 1)
    w.settle()
    assert numbers(w, granted(w.acquire("train", "job", 1)))[0] > first[-1]
