"""Units that a person takes out of a dataset: out of what is cached, being made and planned, for good."""

from __future__ import annotations

import dataclasses

import pytest

from cachecd import events as ev
from cachecd.catalog import Catalog, SavedPlan
from cachecd.index import Index
from cachecd.model import EXCLUDED, ObjectInfo, SetAside, Shard, ShardId
from cachecd.rules import DatasetRules
from tests.test_index import SOURCE
from tests.units import full
from tests.world import FOOTPRINT, SHARD_SIZE, UNIT, Units, World, granted, numbers, train, world


def units_of(w: World, lease: str) -> set[int]:
    return {unit for n in numbers(w, lease) for unit, _ in w.disk[ShardId("train", n)]}


def holder(w: World, unit: int) -> ShardId:
    return next(shard for shard, records in w.disk.items() if (unit, 0) in records)


@pytest.mark.parametrize("pin", [False, True])
def test_what_is_excluded_is_in_no_later_lease_and_the_units_beside_it_come_again(pin):
    w = world(shards=12, units=20, pin=pin)
    w.settle()
    before = granted(w.acquire("train", "job", 0))
    assert units_of(w, before) == set(range(20))
    shard = holder(w, 7)
    w.exclude("train", [7])
    w.settle()
    after = granted(w.acquire("train", "job", 1))
    assert units_of(w, after) == set(range(20)) - {7}
    assert w.state.datasets["train"].whole
    assert shard in w.disk, "the first lease has it still"
    assert w.state.corrupt_shards == 0
    w.drop(before)
    w.settle()
    assert shard not in w.disk


@pytest.mark.parametrize("verified", [False, True])
def test_a_set_with_an_excluded_record_is_given_to_its_other_ranks_and_to_no_run_begun_again(
    verified,
):
    w = world(shards=12, units=20)
    w.settle()
    before = granted(w.acquire("train", "job", 0, rank=0, world=2))
    w.exclude("train", [7])
    if verified:
        w.settle()
    assert granted(w.acquire("train", "job", 0, rank=1, world=2)) == before
    if verified:
        w.restart()
        w.settle()
    w.locks[before].clear()
    w.feed(ev.LeaseUnheld(before))  # as when somebody asks for the epoch
    assert before not in w.manifests, "whatever is left of its grace"
    assert 7 not in units_of(w, granted(w.acquire("train", "job", 0)))


def test_no_lease_is_granted_of_a_shard_that_is_about_to_be_barred_for_it():
    w = world(shards=12, units=20)
    w.settle()
    w.exclude("train", [7])
    assert w.verifying == [holder(w, 7)]
    assert 7 not in units_of(w, granted(w.acquire("train", "job", 0)))


@pytest.mark.parametrize("cause", ["worker", "source"])
@pytest.mark.parametrize("fails", ["before", "after"])
def test_nobody_waits_for_a_failed_shard_of_which_all_units_are_excluded_by_now(cause, fails):
    pinned = DatasetRules("eval", "1", first=SHARD_SIZE, pin=True)
    w = World(12 * FOOTPRINT, {pinned: Units([UNIT]), train(): Units([UNIT] * 9)}, 1)
    w.tick(0)
    (shard,) = w.making
    assert shard.dataset == "eval"
    if fails == "before":
        w.fail(shard, cause)
        assert not w.state.datasets["eval"].whole, "it is tried again after a while"
    w.exclude("eval", [0])
    if fails == "after":
        w.fail(shard, cause)
    w.settle()
    assert w.state.datasets["eval"].whole
    assert len(w.state.datasets["train"].live) > 1, "not kept at what its first lease takes"


def test_other_datasets_stay_at_first_while_a_pinned_shard_is_looked_into_and_grow_after():
    pinned = DatasetRules("eval", "1", first=SHARD_SIZE, pin=True)
    w = World(12 * FOOTPRINT, {pinned: Units([UNIT]), train(): Units([UNIT] * 9)}, 1)
    w.settle()
    w.exclude("eval", [0])  # what is left of the set is whole, but its shard is out of service
    w.sources["train"].append([UNIT])
    w.feed(ev.Listed("train", complete=True))
    assert w.verifying
    assert not w.making
    w.verified(w.verifying[0], sound=True)
    assert [shard.dataset for shard in w.making] == ["train"]


def test_a_shard_that_is_being_made_of_it_is_barred_when_it_is_published():
    w = world(shards=12, units=20, workers=1)
    ((shard, assignment),) = w.making.items()
    unit = assignment.units[0].unit
    w.make(shard)
    w.exclude("train", [unit])
    w.publish(shard)
    assert w.verifying == [shard]
    w.settle()
    assert units_of(w, granted(w.acquire("train", "job", 0))) == set(range(20)) - {unit}


def test_what_did_not_fit_of_it_is_dropped_whether_that_was_before_or_comes_after():
    for after in (False, True):
        w = world(shards=12, units=20, workers=1)
        ((shard, assignment),) = w.making.items()
        last = assignment.units[-1]
        if after:
            w.exclude("train", [last.unit])
        rest = (dataclasses.replace(last, ordinal=2),)
        w.make(shard, dataclasses.replace(full(assignment), remainder=rest))
        w.publish(shard)
        if not after:
            w.exclude("train", [last.unit])
        waiting = w.state.datasets["train"].plan.left_over
        assert last.unit not in {part.unit for part in waiting}, (
            "it would keep a set from being whole"
        )
        w.settle()
        assert units_of(w, granted(w.acquire("train", "job", 0))) == set(range(20)) - {last.unit}


def test_a_shard_that_failed_is_made_again_without_it():
    w = world(shards=12, units=20, workers=1)
    ((shard, assignment),) = w.making.items()
    w.fail(shard, "disk")
    w.exclude("train", [u.unit for u in assignment.units])
    w.tick(60)
    begun = {u.unit for a in w.making.values() for u in a.units}
    assert begun.isdisjoint(u.unit for u in assignment.units)
    w.settle()
    wanted = set(range(20)) - {u.unit for u in assignment.units}
    assert units_of(w, granted(w.acquire("train", "job", 0))) == wanted


def test_it_outlasts_a_restart_a_new_generation_and_a_new_listing_by_its_name():
    w = world(shards=20, units=20)
    w.settle()
    w.exclude("train", [7])
    w.settle()
    w.restart()
    w.settle()
    assert 7 not in units_of(w, granted(w.acquire("train", "job", 0)))
    w.rules["train"] = dataclasses.replace(w.rules["train"], generation="2-b")
    w.sources["train"].id = "another listing"
    w.restart()
    w.settle()
    lease = granted(w.acquire("train", "job", 1))
    assert w.manifests[lease].generation == "2-b"
    assert units_of(w, lease) == set(range(20)) - {7}


def test_what_an_older_generations_shards_hold_is_known_though_the_catalog_was_lost():
    w = world(shards=20, units=20)
    w.settle()
    w.rules["train"] = dataclasses.replace(w.rules["train"], generation="2-b")
    w.restart(lost_catalog=True)
    w.exclude("train", [7])
    lease = granted(w.acquire("train", "job", 0))
    assert w.manifests[lease].generation == "1-a"
    assert 7 not in units_of(w, lease)


def test_a_unit_that_turns_up_in_a_listing_under_a_known_name_is_not_fetched():
    w = world(shards=12, units=3)
    w.state.datasets["train"].excluded.names.update([(f"key-{n}", 0) for n in (*range(3, 13), 15)])
    w.settle()
    w.sources["train"].append([UNIT] * 17)
    w.feed(ev.Listed("train", complete=True))
    wanted = {*range(3), 13, 14, *range(16, 20)}
    while w.making or w.publishing:
        assert {u.unit for a in w.making.values() for u in a.units} <= wanted
        w.work(1)
    assert units_of(w, granted(w.acquire("train", "job", 0))) == wanted
    asides = w.rows.set_aside("train")
    assert [(a.unit, a.reason) for a in asides] == [(n, EXCLUDED) for n in (*range(3, 13), 15)]


def test_it_is_not_tried_again_by_itself_but_once_it_is_let_in():
    w = world(shards=12, units=20, workers=1)
    ((shard, assignment),) = w.making.items()
    bad = assignment.units[0]
    aside = (SetAside(bad.unit, bad.key, "refused", passing=True),)
    rest = dataclasses.replace(assignment, units=assignment.units[1:])
    w.make(shard, dataclasses.replace(full(rest), set_aside=aside))
    w.exclude("train", [bad.unit])
    w.settle()
    given_up = len(w.set_aside)
    w.tick(2 * 24 * 3600.0)
    w.settle()
    assert len(w.set_aside) == given_up
    assert bad.unit not in {unit for records in w.disk.values() for unit, _ in records}
    assert [a.reason for a in w.rows.set_aside("train")] == [EXCLUDED]
    w.let_in("train", [bad.unit])
    w.settle()
    assert units_of(w, granted(w.acquire("train", "job", 0))) == set(range(20))
    assert w.rows.set_aside("train") == []


def test_the_catalog_keeps_names_over_plans_and_finds_the_shards_that_hold_a_unit(tmp_path):
    catalog = Catalog(tmp_path / "catalog.sqlite")
    plan = SavedPlan("train", {}, ())
    for number, units in enumerate([[1, 2], [3], [2, 9]], 1):
        shard = Shard(ShardId("train", number), "g", 1, 1, 1)
        catalog.save_progress(plan, shard=shard, units=units)
    assert [n for some in catalog.holders("train", [2], ["g"]) for n in some] == [1, 3]
    assert [n for some in catalog.holders("train", [2], ["h"]) for n in some] == []
    catalog.save_progress(plan, barred=3, excluded=[("k", 0), ("k", 5)])
    assert [n for some in catalog.holders("train", [2, 7], ["g", "h"]) for n in some] == [1]
    catalog.bar("train", [1, 2])
    assert [n for some in catalog.holders("train", [2, 3, 9], ["g"]) for n in some] == []
    catalog.start_over(plan)
    catalog.close()
    again = Catalog(tmp_path / "catalog.sqlite")
    assert again.excluded("train") == [("k", 0), ("k", 5)]
    assert again.excluded("eval") == []
    again.close()


def test_the_units_of_an_object_are_found_by_its_key_beside_who_writes_the_index(tmp_path):
    index = Index.open(tmp_path, "train", SOURCE)
    index.append([ObjectInfo(f"k{n:03}", n) for n in range(100)])
    index.append([ObjectInfo("parts", 7), ObjectInfo("parts", 9, begin=7, label="cat")])
    length = index.path.stat().st_size
    with index.path.open("ab") as file:
        file.write(b"an append that is going on")
    beside = Index.by_id(tmp_path, "train", index.id)
    assert beside is not None
    assert (beside.id, beside.source, len(beside)) == (index.id, SOURCE, 102)
    for one in (index, beside):
        assert [unit.unit for unit in one.find("k042")] == [42]
        assert [(unit.begin, unit.size) for unit in one.find("parts")] == [(0, 7), (7, 9)]
        assert one.find("part") == one.find("zzz") == one.find("") == []
    assert index.path.stat().st_size > length, "nothing is cut off by who only looks"
    beside.close()
    index.close()


def test_while_it_is_looked_for_what_holds_an_excluded_unit_nothing_is_leased_and_nothing_is_whole():
    w = world(shards=4, units=4, first=SHARD_SIZE)
    w.settle()
    dataset = w.state.datasets["train"]
    assert dataset.whole
    dataset.excluded.sought = True
    assert not dataset.whole
    waiting = w.acquire("train", "job", 0)
    assert isinstance(waiting, ev.ReplyWaiting)
    assert waiting.reason == "what was excluded is looked for"
    w.feed(ev.ExclusionsKnown("train"))
    assert dataset.whole
    granted(w.acquire("train", "job", 0))
