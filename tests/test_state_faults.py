"""What random events found in the policy, each as the shortest story that shows it."""

from __future__ import annotations

import pytest

from cachecd import events as ev
from cachecd.ledger import METADATA_SLACK
from cachecd.model import ShardId
from cachecd.rules import DatasetRules
from cachecd.second_chance import FIRST
from tests.world import FOOTPRINT, SHARD_SIZE, UNIT, Units, World, granted, numbers, train, world


def retired(w: World) -> list[int]:
    return [n for n, s in w.state.datasets["train"].live.items() if s.retired]


def next_epoch(w: World, epoch: int, job: str = "job") -> str:
    """The job's next epoch; it leaves the one before, and the link catches up."""
    before = [i for i, m in w.manifests.items() if m.job == job]
    lease = granted(w.acquire("train", job, epoch))
    for old in before:
        w.drop(old)
    w.settle()
    return lease


def test_an_epoch_asked_for_again_and_again_while_its_manifest_is_refused_rotates_once():
    w = world(shards=12, units=200)
    w.settle()
    for epoch in range(4):
        next_epoch(w, epoch)
    for lease in list(w.manifests):
        w.drop(lease)
    w.refuses.add("manifest")
    w.acquire("train", "job", 4)
    w.settle()
    there = set(w.disk)
    for _ in range(20):
        w.acquire("train", "job", 4)
        w.settle()
    assert set(w.disk) == there


def test_what_a_staying_holder_keeps_counts_as_retired_though_everything_was_cached_for_a_while():
    w = world(shards=8, units=34)
    w.settle()
    stays = granted(w.acquire("train", "stays", 0))
    next_epoch(w, 0)
    assert len(retired(w)) == 1, "there was one unit to put in a shard's place"
    w.sources["train"].append([UNIT] * 60)
    for epoch in range(1, 12):
        w.feed(ev.Listed("train", complete=True))
        next_epoch(w, epoch)
    kept = sum(w.state.datasets["train"].live[n].shard.allocated for n in retired(w))
    assert kept <= 0.25 * 8 * FOOTPRINT
    assert stays in w.manifests


def test_a_corrupt_shard_takes_nothing_from_the_sets_of_earlier_epochs():
    w = world(shards=30, first=2 * 3 * UNIT, per_epoch=3 * UNIT, wait=True)
    w.settle()
    sets = [numbers(w, next_epoch(w, epoch)) for epoch in range(5)]
    w.found_corrupt(ShardId("train", 5))
    w.drop(next(iter(w.manifests)))
    w.settle()
    assert ShardId("train", 5) not in w.disk
    assert [numbers(w, next_epoch(w, e, "again")) for e in range(3)] == sets[:3]
    w.restart()
    assert [numbers(w, next_epoch(w, e, "after")) for e in range(3)] == sets[:3]


def test_with_wait_a_staying_holder_does_not_keep_other_jobs_waiting():
    w = world(shards=8, first=SHARD_SIZE, per_epoch=3 * UNIT, wait=True)
    w.settle()
    for epoch in range(12):
        next_epoch(w, epoch)
    granted(w.acquire("train", "stays", 12))
    for epoch in range(12, 40):
        lease = next_epoch(w, epoch)
        assert numbers(w, lease)


def test_with_wait_and_nothing_to_add_nothing_is_retired():
    other = DatasetRules("other", "1", first=SHARD_SIZE)
    rules = train(per_epoch=0, wait=True, first=3 * 3 * UNIT)
    w = World(12 * FOOTPRINT, {rules: Units([UNIT] * 99), other: Units([UNIT] * 99)})
    w.settle()
    sets = [numbers(w, next_epoch(w, epoch)) for epoch in range(6)]
    assert sets == [[1, 2, 3]] * 6


def test_a_file_system_that_others_fill_does_not_shrink_the_cache():
    w = world(shards=20, units=30)
    w.settle()
    assert w.state.datasets["train"].whole
    before = set(w.disk)
    w.spare = 2 * FOOTPRINT
    w.measure()
    assert w.state.ledger.room < 0
    for epoch in range(5):
        next_epoch(w, epoch)
    assert set(w.disk) == before


def test_room_on_the_file_system_is_given_once_though_a_worker_has_not_taken_it_yet():
    w = World(20 * FOOTPRINT, {train(): Units([])}, workers=4)
    w.spare = 3 * FOOTPRINT
    w.measure()
    w.sources["train"].append([UNIT] * 99)
    w.feed(ev.Listed("train", complete=True))
    for _ in range(5):
        w.measure()
        w.tick()
    assert len(w.making) == 3


def test_a_datasets_own_lowered_limit_is_reached_though_everything_is_cached():
    w = world(shards=20, units=30, refresh=0.5)
    w.settle()
    w.reconfigure(w.limit, train(refresh=0.5, limit=6 * FOOTPRINT))
    for epoch in range(10):
        next_epoch(w, epoch)
    assert w.state.ledger.of("train") <= 6 * FOOTPRINT


def test_an_assignment_of_which_every_unit_is_set_aside_needs_no_room():
    w = world(shards=4, units=1, workers=1)
    shard = ShardId("train", 1)
    w.fail(shard, "worker", 0)
    w.tick(60.0)
    w.spare = 0  # others have taken the disk in the meantime
    w.measure()
    w.fail(shard, "worker", 0)
    w.tick(60.0)
    assert [aside.unit for aside in w.set_aside] == [0]
    assert w.state.datasets["train"].whole, "nothing is left to be made"


@pytest.mark.parametrize("passing", [(True, True), (True, False), (False, True)])
def test_a_unit_that_want_of_memory_may_have_killed_is_tried_again_some_day(passing):
    w = world(shards=4, units=1, workers=1)
    for each in passing:
        w.tick(60.0)
        (shard,) = w.making
        w.fail(shard, "worker", 0, each)
    assert [(aside.unit, aside.passing) for aside in w.set_aside] == [(0, True)]
    w.settle()
    assert not w.disk
    w.tick(FIRST)
    w.settle()
    assert w.state.datasets["train"].plan.num_aside == 0
    assert sum(map(len, w.disk.values())) == 4


def test_a_lost_workers_report_of_a_unit_that_is_not_its_own_is_a_lost_worker_and_no_more():
    w = world(workers=1)
    shard = ShardId("train", 1)
    for _ in range(3):
        w.fail(shard, "worker", 999_999)
        w.tick(120.0)
        while shard not in w.making:
            w.work(1)
            w.tick(120.0)
    assert not w.set_aside


def test_one_worker_serves_datasets_in_turn():
    other = DatasetRules("zeta", "1", first=SHARD_SIZE)
    w = World(20 * FOOTPRINT, {train(): Units([UNIT] * 99), other: Units([UNIT] * 99)}, workers=1)
    for _ in range(12):
        w.work(1)
    assert {shard.dataset for shard in w.disk} == {"train", "zeta"}


def test_what_was_listed_before_a_kill_is_planned_before_others_may_grow():
    pinned = DatasetRules("eval", "1-e", first=SHARD_SIZE, pin=True)
    w = World(
        20 * FOOTPRINT, {pinned: Units([UNIT] * 3), train(first=3 * UNIT): Units([UNIT] * 99)}
    )
    w.work(6)
    w.sources["eval"].append([UNIT] * 9)
    w.restart()
    assert {shard.dataset for shard in w.making} == {"eval"}


def test_the_figure_of_a_refusal_is_one_that_does():
    pinned = DatasetRules("eval", "1-e", first=SHARD_SIZE, pin=True)
    w = World(
        9 * FOOTPRINT, {pinned: Units([UNIT] * 60), train(first=3 * UNIT): Units([UNIT] * 99)}
    )
    w.settle()
    refused = w.acquire("eval", "job", 0)
    assert isinstance(refused, ev.ReplyRefused)
    assert w.limit == METADATA_SLACK + 9 * FOOTPRINT
    w.reconfigure(int(refused.message.rsplit(" ", 2)[1]))
    w.settle()
    assert w.manifests[granted(w.acquire("eval", "job", 0))].num_records == 240


def test_with_wait_the_first_suspect_ends_what_can_be_told_of_the_plan():
    w = world(shards=30, first=3 * UNIT, per_epoch=3 * UNIT, wait=True)
    w.settle()
    next_epoch(w, 0)
    w.feed(ev.CorruptReported(ShardId("train", 2)))
    assert isinstance(w.acquire("train", "job", 1), ev.ReplyWaiting)
    w.settle()
    assert numbers(w, granted(w.acquire("train", "job", 1))) == [1, 2]


def test_a_shard_found_corrupt_while_the_catalog_lags_is_made_again_once_it_is_known_what_it_held():
    pinned = DatasetRules("eval", "1-e", first=SHARD_SIZE, pin=True)
    w = World(14 * FOOTPRINT, {pinned: Units([UNIT] * 5)})
    w.rows.refuses = True
    w.work(40)
    w.found_corrupt(ShardId("eval", 1))
    assert w.verifying, "which units it holds is not known yet"
    w.repair()
    w.verified(ShardId("eval", 1), sound=False)
    w.settle()
    assert w.manifests[granted(w.acquire("eval", "job", 0))].num_records == 20


def test_a_pinned_set_that_lost_a_shard_gets_its_room_from_others_before_their_next_epoch():
    """Leases, the listing and the catalog have grown into the room that the lost shard left."""
    pinned = DatasetRules("eval", "1-e", first=SHARD_SIZE, pin=True)
    w = World(
        12 * FOOTPRINT, {pinned: Units([UNIT] * 9), train(first=3 * UNIT): Units([UNIT] * 99)}
    )
    w.settle()
    w.drop(granted(w.acquire("train", "job", 0)))
    w.settle()
    w.feed(ev.CorruptReported(ShardId("eval", 2)))
    w.metadata += FOOTPRINT
    w.measure()
    w.verified(ShardId("eval", 2), sound=False)
    w.settle()
    for _ in range(2):  # a shard of the others is smaller than the room for one
        assert isinstance(w.acquire("eval", "job", 0), ev.ReplyWaiting)
        w.settle()
    assert w.manifests[granted(w.acquire("eval", "job", 0))].num_records == 36
