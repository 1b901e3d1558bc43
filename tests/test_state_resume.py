"""Runs resume under the same random interleavings, and nothing that the policy promises suffers."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from cachecd import events as ev
from cachecd.acquire import walk_of
from cachecd.model import MOST_CURSOR, Resume, ShardId
from cachecd.recovery import saved_plan
from cachecd.rules import DatasetRules
from tests import test_state_machine as machine
from tests.resuming import ResumingWorld
from tests.units import FOOTPRINT, SHARD_SIZE, Units

LATEST = st.integers(1, 4)


class Resumed(machine.Policy):
    """As in `Policy`, and disks are lost, and runs ask for the sets that they had."""

    world: ResumingWorld
    played_by = ResumingWorld

    @precondition(lambda self: self.world.past)
    @rule(latest=LATEST)
    def a_run_resumes(self, latest):
        self.world.ask_again(max(len(self.world.past) - latest, 0), "resumed")

    @precondition(lambda self: self.world.past)
    @rule(latest=LATEST, steps=st.integers(0, 20))
    def a_disk_is_lost_and_a_run_resumes(self, latest, steps):
        self.world.lose_disk()
        self.world.work(steps)
        self.a_run_resumes(latest)


TestResumed = Resumed.TestCase
TestResumed.settings = settings(
    machine.TestPolicy.settings,
    max_examples=int(os.environ.get("CACHECD_POLICY_EXAMPLES", "12")),
)


def begun(place: int, **facts: object) -> ResumingWorld:
    """A world of one dataset of 30 units, which a run has asked to begin at a place before any shard was
    sealed."""
    rules = DatasetRules("train", "1", first=SHARD_SIZE)
    w = ResumingWorld(30 * FOOTPRINT, {rules: Units([20 << 10] * 30)}, 1)
    ask(w, place, **facts)
    return w


def ask(w: ResumingWorld, place: int, **facts: object) -> ev.Command:
    dataset = w.state.datasets["train"]
    named = {"walk": walk_of(dataset.rules), "generation": dataset.rules.generation, "shards": ()}
    w.requests += 1
    request = str(w.requests)
    resume = Resume(**{**named, "cursor": place, **facts})
    w.feed(ev.AcquireAsked(request, "train", "resumed", 0, resume=resume))
    return w.replies.pop(request)


def test_an_unsealed_generation_begins_at_the_place_of_a_resume():
    w = begun(17, shards=((4, 9),))
    follow = w.state.datasets["train"].plan.walk.cycle.ahead(17, 3).tolist()
    w.settle()
    numbers = sorted(shard.number for shard in w.disk)
    assert numbers[:2] == [1, 10], "numbers that the run knows are not given again"
    units = {unit for unit, _ in w.disk[ShardId("train", 10)]}
    assert units & set(follow)


@pytest.mark.parametrize("place", [30, 31, 10**9, MOST_CURSOR - 1])
def test_a_place_beyond_the_listing_counts_modulo_its_units(place):
    w = begun(place)
    cycle = w.state.datasets["train"].plan.walk.cycle
    assert cycle.walked[0] == place % 30
    w.settle()
    assert w.state.datasets["train"].plan.coverage == 1


def test_a_generation_with_a_sealed_shard_ignores_places_and_numbers():
    rules = DatasetRules("train", "1", first=SHARD_SIZE)
    worlds = [ResumingWorld(8 * FOOTPRINT, {rules: Units([20 << 10] * 30)}, 1) for _ in range(2)]
    for w in worlds:
        w.work(3)
        assert w.state.datasets["train"].made()
    for place in (0, 7, 10**6, MOST_CURSOR - 1):
        ask(worlds[0], place, shards=((1, 10**9),))
    for w in worlds:
        w.restart()
        w.settle()
    plans = [saved_plan(w.state.datasets["train"], w.sources["train"]) for w in worlds]
    assert plans[0].fields["plan"] == plans[1].fields["plan"]


@pytest.mark.parametrize(
    "facts",
    [{"walk": "another walk"}, {"generation": "2-b"}],
)
def test_a_place_in_another_walk_is_ignored(facts):
    w = begun(17, shards=((4, 9),), **facts)
    dataset = w.state.datasets["train"]
    assert (dataset.began_at, dataset.plan.next_number) == (None, 2)


@pytest.mark.parametrize("shards", [((1, 1 << 62),), ((5, 1_000_000_001),), ((1, 20_000_000),)])
def test_a_set_of_more_shards_than_can_be_is_refused(shards):
    w = ResumingWorld(8 * FOOTPRINT, {DatasetRules("train", "1", 1): Units([20 << 10] * 30)}, 1)
    reply = ask(w, 7, shards=shards)
    assert isinstance(reply, ev.ReplyRefused)
    assert w.state.datasets["train"].plan.next_number == 2


def test_a_set_of_which_a_shard_is_retired_is_there_as_long_as_a_lease_of_it_stands():
    w = ResumingWorld(
        8 * FOOTPRINT, {DatasetRules("train", "1", SHARD_SIZE): Units([20 << 10] * 9)}, 1
    )
    w.settle()
    lease = w.manifests[w.acquire("train", "job", 0).lease]
    w.state.datasets["train"].live.retire(np.array([1]))
    w.model.of["train"].shards[1].retired = True
    heir = w.ask_again(0, "heir")
    assert w.manifests[heir.lease].fingerprint == lease.fingerprint
    for held in list(w.manifests):
        w.drop(held)
    w.settle()
    late = w.ask_again(0, "late")
    assert not isinstance(late, ev.ReplyGranted) or (
        w.manifests[late.lease].fingerprint != lease.fingerprint
    )


@pytest.mark.parametrize("place", [-1, MOST_CURSOR, 1 << 80])
def test_a_place_that_no_manifest_can_name_is_refused(place):
    w = ResumingWorld(8 * FOOTPRINT, {DatasetRules("train", "1", 1): Units([20 << 10] * 30)}, 1)
    reply = ask(w, place)
    assert isinstance(reply, ev.ReplyRefused)
    assert "cursor: expected a number from 0" in reply.message
