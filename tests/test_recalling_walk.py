"""Where the walk goes on for a run that resumes, what numbers come next, and when its set is there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cachecd import events as ev
from cachecd.grant import walk_of
from cachecd.recall import PATIENCE
from cachecd.wanted import ReplyMissing, Wanted
from tests.test_recalling import machines


@pytest.fixture
def machine(tmp_path: Path):
    with machines(tmp_path) as make:
        yield make


def test_a_run_moves_no_walk_that_is_another_one_or_beyond(machine):
    one = machine()
    one.make(2)
    lease = one.lease()
    plan = one.dataset.plan
    for wanted in (
        Wanted("1-a", lease.shards, "", "another walk", (20,)),
        Wanted("2-b", lease.shards, "", lease.walk, (20,)),
        Wanted("1-a", lease.shards, "", lease.walk, (1,)),
        Wanted("1-a", lease.shards, "", lease.walk, (20, 20)),
    ):
        before = plan.cursor
        one.state.handle(ev.AcquireAsked("r", "train", "resumed", 3, wanted=wanted), 0.0)
        assert plan.cursor == before
    wanted = Wanted("1-a", ((1, 9),), "", lease.walk, (20,))
    one.state.handle(ev.AcquireAsked("r", "train", "resumed", 4, wanted=wanted), 0.0)
    assert (plan.cursor, plan.next_number) == (20, 10)


def test_what_comes_after_the_cursor_takes_no_number_of_a_set_that_is_about_to_be_recalled(machine):
    one = machine()
    wanted = Wanted("1-a", ((1, 4),), "the set", walk_of(one.rules), (20,))
    one.state.handle(ev.AcquireAsked("r", "train", "resumed", 3, wanted=wanted), 0.0)
    assert (one.dataset.plan.cursor, one.dataset.plan.next_number) == (20, 1)
    assert one.dataset.recall.awaits(4, PATIENCE - 1)
    assert not one.dataset.recall.awaits(4, PATIENCE), "the run has gone away"


def test_no_shard_has_a_number_of_which_a_run_of_another_walk_may_have_read_records(machine):
    one = machine()
    plan = one.dataset.plan
    wanted = Wanted("2-b", ((1, 9),), "", "another walk", (20,))
    out = one.state.handle(ev.AcquireAsked("r", "train", "resumed", 3, wanted=wanted), 0.0)
    assert ev.SavePlan("train") in out
    assert (plan.cursor, plan.next_number) == (0, 10)


def test_a_set_of_which_a_shard_is_retired_is_there_as_long_as_a_lease_of_it_stands(machine):
    one = machine()
    one.make(2)
    lease = one.lease()
    one.dataset.live.retire(np.array([1]))
    wanted = Wanted("1-a", lease.shards, lease.fingerprint)

    def ask(job: str) -> list[ev.Command]:
        return one.state.handle(ev.AcquireAsked("r", "train", job, 0, wanted=wanted), 0.0)

    assert any(isinstance(told, ev.ReplyGranted) for told in ask("heir"))
    for held in list(one.state.leases):
        one.state.handle(ev.LeaseEnded(held), 1.0)
    assert ask("late") == [ReplyMissing("r", ((1, 1),), "1 of its 2 shards are gone")]
