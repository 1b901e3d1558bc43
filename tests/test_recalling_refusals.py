"""What a client says of shards is held against what can be, before anything comes of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cachecd import events as ev
from cachecd.backlog import Backlog, Effect
from cachecd.model import Assignment, Outcome, Shard, ShardId
from cachecd.plan import Plan
from cachecd.recovery import saved_plan
from cachecd.wanted import Wanted
from cachecd_client import protocol
from tests.test_recalling import SHARD_SIZE, Machine, assignment, machines, plan_of


@pytest.fixture
def machine(tmp_path: Path):
    with machines(tmp_path) as make:
        yield make


@pytest.fixture
def recipes(machine) -> list[str]:
    one = machine()
    one.make(4)
    return one.recipes(one.lease().id)


def asked(one: Machine, shards: list[list[int]], recipes: list[str]) -> protocol.Reply:
    return one.recalling.answer(protocol.Recall("r", "train", "1-a", shards, 1, recipes))


def test_shards_of_another_generation_are_no_others_of_a_set(machine, recipes):
    other = machine()
    old = Shard(ShardId("train", 1), "0-z", 1, 1, 8192)
    other.catalog.save_progress(saved_plan(other.dataset, other.index), shard=old, units=range(30))
    other.dataset.live.add(old)
    other.dataset.plan.skip_to(1, 0)
    assert other.recall(recipes[1:]) == protocol.Done("r")


@pytest.mark.parametrize("shards", [[[2, 3]], [], [[1, 1 << 62]], [[2, 1]], [[1, 20_000_000]]])
def test_recipes_of_other_shards_than_those_of_the_set_are_refused(machine, recipes, shards):
    one = machine()
    reply = asked(one, shards, recipes[:1])
    assert (reply.code, one.dataset.plan.next_number) == ("bad-request", 1)
    assert "shard" in reply.message


@pytest.mark.parametrize("shards", [((1, 1 << 62),), ((5, 1_000_000_001),), ((1, 20_000_000),)])
def test_a_set_of_more_shards_than_can_be_is_refused(machine, shards):
    one = machine()
    one.make(2)
    lease = one.lease()
    wanted = Wanted("1-a", shards, "", lease.walk, (20,))
    told = one.state.handle(ev.AcquireAsked("r", "train", "resumed", 3, wanted=wanted), 0.0)
    assert [reply.code for reply in told] == ["bad-request"]
    assert one.dataset.plan.next_number == 3


def test_numbers_that_no_shard_has_take_no_time_however_many_they_are():
    plan = plan_of()
    begun = plan.assign()
    assert isinstance(begun, Assignment)
    plan.overtake(1 << 40)
    plan.overtake(1 << 41)
    again = Plan("train", "1-a", plan._units, 0, SHARD_SIZE)
    again.restore(plan.to_json(), plan.open.values())
    again.extend()
    assert len(str(plan.to_json())) < 1000
    for one in (plan, again):
        assert not isinstance(one.assign(), Assignment), "the first is still being made"
        one.finish(1, Outcome(1, 1, 1, 1, 1, 1.0), [u.unit for u in begun.units])
        following = one.assign()
        assert isinstance(following, Assignment)
        assert following.shard.number == (1 << 41) + 1


def test_unused_numbers_are_applied_as_far_as_is_asked_and_after_those_before_them():
    backlog = Backlog(applied=2)
    backlog.skip(4, 10)
    assert list(backlog.take_up_to(7)) == []
    backlog.finish(3, Effect())
    assert list(backlog.take_up_to(7)) == [(3, Effect())]
    assert (backlog.applied, backlog.unused) == (7, {8: 10})
    backlog.finish(10, Effect())
    assert list(backlog.take_up_to(20)) == [(10, Effect())]
    assert (backlog.applied, backlog.unused) == (10, {})


@pytest.mark.parametrize(("ordinal", "stop", "fits"), [(1, 0, False), (0, 1, True), (2, 3, True)])
def test_what_is_left_over_here_of_a_units_other_part_is_refused(machine, ordinal, stop, fits):
    """A later set would have its records twice."""
    one = machine()
    head = one.dataset.plan.assign()
    unit = head.units[0].unit
    left = dataclasses.replace(head.units[0], ordinal=ordinal, stop=stop)
    one.dataset.plan.finish(1, Outcome(1, 1, 1, 1, 1, 1.0, (left,)), [])
    part = assignment(one.dataset.plan, 5, (unit, 2, 0))
    check = one.recalling._check_others
    if fits:
        check(one.dataset, set(), (part,))
        return
    with pytest.raises(Exception, match="cut here otherwise"):
        check(one.dataset, set(), (part,))
