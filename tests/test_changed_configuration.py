"""What a start with another configuration makes of what is cached: kept while there is room, and leased
or not."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd import events as ev
from cachecd.generations import configured, numbered, same_split
from cachecd.model import Resume
from cachecd.restraint import Restraint
from cachecd.rules import DatasetRules
from cachecd.status import document
from cachecd.waiting import held_back
from tests.units import FOOTPRINT, RECORDS_PER_UNIT, SHARD_SIZE, Units
from tests.world import UNIT, World, granted, numbers, world


def restart(w: World, generation: str, listing: str = "i") -> None:
    (name,) = w.rules
    w.rules[name] = dataclasses.replace(w.rules[name], generation=generation)
    w.sources[name].id = listing
    w.restart()


def rotate(w: World) -> None:
    """Until there is nothing to make, or no room."""
    for _ in range(20):
        w.tick()
        w.settle()


def generations(w: World) -> set[str]:
    (dataset,) = w.state.datasets.values()
    return {shard.shard.generation for shard in dataset.live.values() if shard.served}


def test_of_two_old_generations_the_older_goes_first_when_room_is_needed_and_not_before():
    w = world(shards=20, units=12)
    w.settle()
    for generation in ("2-b", "3-c"):
        restart(w, generation)
        w.work(2)  # a shard of it, or none: not enough to be served
    assert w.manifests[granted(w.acquire("train", "job", 0))].generation == "2-b"
    assert generations(w) >= {"1-a", "2-b"}
    w.reconfigure(w.limit - 13 * FOOTPRINT)
    w.work(4)
    assert "1-a" not in generations(w)
    assert "2-b" in generations(w)


@pytest.mark.parametrize("pin", [False, True])
def test_a_configuration_that_is_mended_finds_all_that_it_had_however_often_it_was_mistaken(pin):
    rules = DatasetRules("train", "1-a", first=SHARD_SIZE, pin=pin)
    w = World(20 * FOOTPRINT, {rules: Units([UNIT] * 9)})
    w.settle()
    before = numbers(w, granted(w.acquire("train", "job", 0)))
    for mistake in ("2-b", "3-c"):
        restart(w, mistake, "another listing")
        w.settle()
        lease = w.manifests[granted(w.acquire("train", mistake, 0))]
        assert (lease.generation, lease.num_records) == (mistake, 36)
        restart(w, "1-a")
        assert not w.making, "nothing is missing"
        assert numbers(w, granted(w.acquire("train", mistake, 1))) == before


def test_the_same_generation_by_another_listing_is_another_set():
    """Of another numbering nobody knows which of its units are the same: the set would have them twice."""
    w = world(shards=20, units=9)
    w.settle()
    restart(w, "1-a", "another listing")
    w.settle()
    lease = w.manifests[granted(w.acquire("train", "job", 0))]
    assert (lease.generation, lease.num_records) == ("1-a.another listing", 36)


def test_nothing_that_was_cached_before_the_split_is_leased_after_it():
    w = world(shards=8, units=30)
    w.settle()
    restart(w, "1-a-5p117")
    reply = w.acquire("train", "job", 0)
    assert isinstance(reply, ev.ReplyWaiting)
    assert "the split was changed" in reply.reason
    rotate(w)
    lease = w.manifests[granted(w.acquire("train", "job", 0))]
    assert lease.generation == "1-a-5p117"
    restart(w, "1-a")  # and back
    rotate(w)
    w.drop(lease.id)
    rotate(w)
    assert w.manifests[granted(w.acquire("train", "job", 1))].generation == "1-a"


def test_on_a_full_cache_what_the_split_holds_back_makes_room_for_new_shards_bit_by_bit():
    w = world(shards=8, units=99)
    w.settle()
    before = w.occupied()
    restart(w, "1-a-5p117")
    w.work(2)
    w.tick()
    assert w.occupied() > before // 2, "no more goes than is needed"
    rotate(w)
    assert w.manifests[granted(w.acquire("train", "job", 0))].generation == "1-a-5p117"


def test_a_set_that_was_leased_before_the_split_is_not_given_again():
    w = world(shards=8, units=9)
    w.settle()
    lease = w.manifests[granted(w.acquire("train", "job", 0))]
    w.drop(lease.id)
    restart(w, "1-a-5p117")
    again = Resume(lease.generation, lease.shards, lease.fingerprint, lease.walk, lease.cursor)
    w.feed(ev.AcquireAsked("again", "train", "job", 0, 0, 1, again))
    assert isinstance(w.replies.pop("again"), ev.ReplyWaiting)


@pytest.mark.parametrize("resumes", [False, True])
def test_a_lease_of_before_the_split_is_given_to_no_run_begun_again_under_its_name(resumes):
    w = world(shards=8, units=30)
    w.settle()
    lease = w.manifests[granted(w.acquire("train", "job", 0))]
    restart(w, "1-a-5p117")
    same = Resume(lease.generation, lease.shards, lease.fingerprint, lease.walk, lease.cursor)

    def ask() -> object:
        w.feed(ev.AcquireAsked("again", "train", "job", 0, 0, 1, same if resumes else None))
        return w.replies.pop("again")

    reply = ask()
    assert isinstance(reply, ev.ReplyWaiting)
    assert f"lease {lease.id} of before" in reply.reason
    assert "is still held" in reply.reason
    w.locks[lease.id].clear()  # the run has died, and its successor is there within the grace
    w.feed(ev.LeaseUnheld(lease.id))
    assert lease.id not in w.manifests
    assert not isinstance(ask(), ev.ReplyGranted)
    rotate(w)
    assert w.manifests[granted(ask())].generation == "1-a-5p117"


def test_a_lease_of_before_the_split_is_not_given_to_who_names_the_new_generation_with_its_set():
    w = world(shards=8, units=30)
    w.settle()
    lease = w.manifests[granted(w.acquire("train", "job", 0))]
    restart(w, "1-a-5p117")
    same = Resume("1-a-5p117", lease.shards, lease.fingerprint, lease.walk, lease.cursor)
    w.feed(ev.AcquireAsked("again", "train", "other", 0, 0, 1, same))
    assert isinstance(w.replies.pop("again"), ev.ReplyWaiting)


def test_a_plain_name_says_number_content_and_split():
    plain = configured(3, ["s3://b", "files"], None)
    split = configured(3, ["s3://b", "files"], {"eval": 0.1})
    raised = configured(3, ["s3://b", "files"], {"eval": 0.2})
    other = configured(3, ["s3://c", "files"], {"eval": 0.1})
    assert plain.startswith("3-")
    assert split.startswith(f"{plain}-")
    assert not same_split(plain, split)
    assert not same_split(split, raised)
    assert same_split(split, other)
    assert same_split(split, numbered(split, "L", {split: "K"}))


def test_a_name_is_told_from_others_of_the_plain_name_by_its_listing():
    known = {"1-a": "K", "1-a.L": "L", "2-b": "M", "1-c": ""}
    assert numbered("1-a", "K", known) == "1-a"
    assert numbered("1-a", "L", known) == "1-a.L"
    assert numbered("1-a", "M", known) == "1-a.M"
    assert numbered("1-d", "K", known) == "1-d"
    assert numbered("1-c", "K", known) == "1-c.K", (
        "nobody knows by which listing its shards are numbered"
    )
    assert numbered("1-a", "L", {}) == "1-a"


def test_a_shard_that_is_published_with_a_unit_which_another_holds_is_in_no_set():
    w = world(shards=8, units=12, workers=1)
    w.work(2)
    (first,) = w.disk
    ((shard, assignment),) = w.making.items()
    held = w.sources["train"].unit(next(unit for unit, _ in w.disk[first]))
    twice = dataclasses.replace(assignment, units=(held, *assignment.units))
    plan = w.state.datasets["train"].plan
    w.making[shard] = plan.open[shard.number] = twice
    plan.hold([held.unit])  # as whatever assigned it twice would
    w.make(shard)
    w.publish(shard)
    assert w.verifying == [shard]
    w.settle()
    assert shard.number not in numbers(w, granted(w.acquire("train", "job", 0)))


def test_coverage_is_what_was_in_a_shard_whatever_was_handed_out():
    w = world(shards=8, units=60, workers=3)
    plan = w.state.datasets["train"].plan
    cached: set[int] = set()
    shares = []
    for epoch in range(60):
        reply = w.acquire("train", "job", epoch)
        done = False
        while not done:
            done = w.work(1)
            cached |= {unit for records in w.disk.values() for unit, _ in records}
            assert plan.coverage == pytest.approx(len(cached) / 60), epoch
        shares.append(plan.coverage)
        if isinstance(reply, ev.ReplyGranted):
            w.drop(reply.lease)
    assert shares[0] < 0.6
    assert shares[-1] == 1


def test_status_says_that_shards_are_held_back_until_there_is_something_to_lease():
    w = world(shards=8, units=9)
    w.settle()
    restart(w, "1-a-5p117")
    dataset = w.state.datasets["train"]
    assert held_back(dataset).startswith("the split was changed: none of the 3 shards")
    rotate(w)
    assert held_back(dataset) == ""


SEEDS_AND_SHARDS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), min_size=2)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 3), SEEDS_AND_SHARDS)
def test_whatever_seeds_a_start_was_given_every_record_is_there_once(workers, starts):
    """Units that are larger than a shard: what one walk has begun of a unit, another goes on with."""
    rules = DatasetRules("train", "1-a", first=SHARD_SIZE, seed=1)
    sizes = [200 << 10, UNIT] * 3
    w = World(90 * FOOTPRINT, {rules: Units(sizes)}, workers)
    for seed, made in starts:
        w.rules["train"] = dataclasses.replace(rules, seed=seed)
        w.restart()
        there = len(w.disk)
        while len(w.disk) < there + made and not w.work(1):
            pass
    w.rules["train"] = rules
    w.restart()
    w.settle()
    lease = w.manifests[granted(w.acquire("train", "job", 0))]
    of = {shard.number: records for shard, records in w.disk.items()}
    found = Counter(record for number in numbers(w, lease.id) for record in of[number])
    assert set(found.values()) == {1}
    assert len(found) == RECORDS_PER_UNIT * len(sizes)


A, B = (DatasetRules(name, f"1-{name}", first=SHARD_SIZE) for name in "ab")


def _epoch(w: World, name: str, epoch: int) -> str:
    """Takes an epoch and leaves it; the generation that it was of, "" if none was granted."""
    reply = w.acquire(name, "job", epoch)
    if not isinstance(reply, ev.ReplyGranted):
        return ""
    generation = w.manifests[reply.lease].generation
    w.settle()
    w.drop(reply.lease)
    w.tick()
    w.settle()
    return generation


def _replace(w: World, name: str, units: int) -> None:
    w.rules[name] = dataclasses.replace(w.rules[name], generation="2-new")
    w.sources[name] = Units([UNIT] * units)
    w.sources[name].id = "another listing"
    w.restart()


@pytest.mark.parametrize(("limit", "there"), [(None, 26), (30, 26), (12, 15)])
def test_a_dataset_with_a_limit_of_its_own_gets_the_room_of_anothers_idle_shards_up_to_it(
    limit, there
):
    w = World(20 * FOOTPRINT, {A: Units([UNIT] * 45)})
    w.settle()
    own = None if limit is None else limit * FOOTPRINT
    w.configure(dataclasses.replace(B, limit=own), Units([UNIT] * 90))
    _replace(w, "a", 6)
    for epoch in range(12):
        _epoch(w, "a", epoch)
        _epoch(w, "b", epoch)
    live = w.state.datasets["b"].live
    assert live.served().shards >= there
    idle = len(w.state.datasets["a"].idle)
    assert bool(idle) == (limit == 12), "no more goes than the other may take"


def test_a_holder_of_one_dataset_does_not_keep_another_from_the_room_of_its_idle_shards():
    rotating = dataclasses.replace(B, limit=14 * FOOTPRINT)
    w = World(22 * FOOTPRINT, {A: Units([UNIT] * 30), rotating: Units([UNIT] * 900)})
    w.settle()
    stays = granted(w.acquire("b", "stays", 0))
    w.settle()
    for epoch in range(4):
        _epoch(w, "b", epoch)
    assert w.state.datasets["b"].live.num_retired, "held by who stays"
    _replace(w, "a", 30)
    w.locks[stays] = {0}
    for epoch in range(10):
        _epoch(w, "a", epoch)
    assert stays in w.manifests
    assert w.state.datasets["a"].whole
    assert w.state.datasets["a"].live.served("2-new").shards == 10


def test_idle_shards_that_a_lease_names_go_no_faster_than_their_room_is_needed():
    w = world(shards=12, units=300)
    w.settle()
    lease = granted(w.acquire("train", "job", 0))
    restart(w, "2-b")
    w.locks[lease] = {0}
    for turn in range(3):
        w.acquire("train", f"job {turn}", 0)
    for _ in range(30):
        w.tick()
        w.settle()
    dataset = w.state.datasets["train"]
    assert lease in w.manifests
    assert dataset.live.num_retired <= 4, "what a mended configuration could use again"


@pytest.mark.parametrize("pin", [False, True])
def test_what_was_delivered_is_known_of_shards_that_stay_where_seed_or_generation_change(pin):
    w = world(shards=12, units=30 if pin else 300, pin=pin)
    w.settle()
    w.deliver(granted(w.acquire("train", "job", 0)))
    w.settle()
    before = w.state.datasets["train"].live.delivered
    assert before
    for _ in range(2):
        for changed in ({"seed": 7}, {"seed": 0}, {"generation": "2-b"}, {"generation": "1-a"}):
            w.rules["train"] = dataclasses.replace(w.rules["train"], **changed)
            w.spare = 0  # nothing is begun
            w.restart()
            assert w.state.datasets["train"].live.delivered == before, changed


def test_a_superseded_generation_makes_room_for_the_new_one_though_hardly_any_of_it_is_read_again():
    w = world(shards=12, units=300)
    w.reads_at_once = False
    w.settle()
    restart(w, "2-b")
    for epoch in range(8):
        if _epoch(w, "train", epoch) == "2-b":
            return
    raise AssertionError("the old generation is trained on and on")


def test_status_counts_as_idle_what_no_lease_names_and_not_what_is_being_prepared():
    def idle() -> int:
        found: int = document(w.state, {}, w.now)["datasets"]["train"]["idle_shards"]
        return found

    w = world(shards=20, units=12, first=3 * SHARD_SIZE)
    w.settle()
    restart(w, "2-b")
    w.work(4)
    live = w.state.datasets["train"].live
    assert (w.state.datasets["train"].leasable, live.served("2-b").shards) == ("1-a", 2)
    assert idle() == 0
    w.settle()
    assert idle() == len(w.state.datasets["train"].idle) == live.served("1-a").shards > 0


@pytest.mark.parametrize("why", ["egress", "offline"])
def test_idle_shards_stay_where_nothing_may_come_in_their_place(why):
    w = world(shards=8, units=300)
    w.settle()
    there = set(w.disk)
    if why == "egress":
        w.restraint = Restraint(egress_limit=1)
    restart(w, "1-a-5p117")
    if why == "offline":
        w.feed(ev.Draining())
        w.settle()
        there = set(w.disk)
    for _ in range(20):
        w.tick()
        w.settle()
    assert len(w.state.datasets["train"].idle), "of before the split"
    assert set(w.disk) == there


LARGE = [200 << 10] * 3  # units of four shards each


@pytest.mark.parametrize("other", [{"generation": "2-b"}, {"seed": 2}])
def test_what_was_lost_of_a_unit_while_another_walk_was_configured_comes_again(other):
    rules = DatasetRules("train", "1-a", first=SHARD_SIZE, seed=1)
    w = World(60 * FOOTPRINT, {rules: Units(LARGE)}, 1)
    w.settle()
    lost = min(w.disk)
    records = w.disk[lost]
    w.spare = 0  # the other walk begins nothing
    w.rules["train"] = dataclasses.replace(rules, **other)
    w.restart()
    w.found_corrupt(lost)
    while w.unlinking:
        w.unlink(w.unlinking[0])
    w.spare = None
    w.rules["train"] = rules
    for _ in range(2):  # it is known after one more start, too
        w.restart()
    w.settle()
    assert records <= set().union(*w.disk.values())


def test_what_made_room_for_a_mistake_comes_again_and_the_mistake_makes_room_for_it():
    rules = DatasetRules("train", "1-a", first=6 * SHARD_SIZE)
    w = World(14 * FOOTPRINT, {rules: Units(LARGE)}, 1)
    w.settle()
    w.rules["train"] = dataclasses.replace(rules, generation="2-b")
    w.restart()
    w.settle()
    w.drop(granted(w.acquire("train", "job", 0)))
    w.settle()
    assert sum(meta["shard"].generation == "1-a" for meta in w.meta.values()) < 12
    w.rules["train"] = rules
    w.restart()
    for epoch in range(1, 8):
        w.settle()
        lease = w.manifests[granted(w.acquire("train", "job", epoch))]
        w.let_go(lease.id)
    assert lease.num_records == 3 * RECORDS_PER_UNIT
    assert w.state.datasets["train"].whole
