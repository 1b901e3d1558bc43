"""Coverage against a model that keeps the set of units that were ever in a shard."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd import events as ev
from tests.test_plan import plan_of
from tests.world import UNIT, World, world

UNITS = 40


class Ever:
    """Which units of a dataset were in a shard at any time."""

    def __init__(self, w: World) -> None:
        self.w = w
        self.epoch = 0
        self.cached: set[int] = set()

    def step(self, what: str, few: list[int]) -> None:
        listed = len(self.w.sources["train"])
        some = {n % listed for n in few}
        if what == "epoch":
            reply = self.w.acquire("train", "job", self.epoch)
            self.epoch += 1
            if isinstance(reply, ev.ReplyGranted):
                self.w.let_go(reply.lease)
        elif what == "gone":
            self.w.relist("train", some - self.gone, set())
        elif what == "back":
            self.w.relist("train", set(), some & self.gone)
        elif what == "exclude":
            self.w.exclude("train", sorted(some))
        elif what == "more":
            self.w.sources["train"].append([UNIT] * 7)
            self.w.feed(ev.Listed("train", complete=True, fresh=True))
        elif what == "restart":
            self.w.restart()
        else:
            for _ in few:
                self.w.work(1)
                self.look()
        self.look()

    def look(self) -> None:
        for records in self.w.disk.values():
            self.cached |= {unit for unit, _ in records}

    @property
    def gone(self) -> set[int]:
        return self.w.gone.get("train", set())

    @property
    def share(self) -> float:
        """Of the units that are there; of none, what the plan says."""
        asides = {aside.unit for aside in self.w.rows.set_aside("train")}
        here = set(range(len(self.w.sources["train"]))) - self.gone - asides
        return len(self.cached & here) / len(here) if here else self.coverage

    @property
    def coverage(self) -> float:
        return self.w.state.datasets["train"].plan.coverage


def steps(*kinds: str) -> st.SearchStrategy[list[tuple[str, list[int]]]]:
    few = st.lists(st.integers(0, 10**6), min_size=1, max_size=12)
    return st.lists(st.tuples(st.sampled_from(kinds), few), max_size=25)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.integers(1, 3), st.integers(4, 12),
    steps("work", "work", "epoch", "epoch", "gone", "back", "exclude", "more"),
)  # fmt: skip
def test_coverage_is_the_share_of_units_that_were_ever_in_a_shard(workers, shards, told):
    ever = Ever(world(shards=shards, units=UNITS, workers=workers))
    for what, few in told:
        ever.step(what, few)
        assert ever.coverage == pytest.approx(ever.share), what


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(4, 12), steps("work", "work", "epoch", "more", "restart"))
def test_after_restarts_coverage_is_never_more_than_the_model_has_and_comes_to_it(
    workers, shards, told
):
    ever = Ever(world(shards=shards, units=UNITS, workers=workers))
    for what, few in told:
        ever.step(what, few)
        assert ever.coverage <= ever.share + 1e-9, what
    ever.step("work", [0] * 1000)
    assert ever.coverage == pytest.approx(ever.share)


def test_what_was_evicted_is_still_covered_after_a_restart():
    ever = Ever(world(shards=8, units=UNITS))
    while len(ever.cached) < UNITS:
        ever.step("work", [0] * 1000)
        ever.step("epoch", [0])
    for _ in range(3):
        ever.step("restart", [0])
        ever.step("work", [0] * 1000)
        assert ever.coverage == 1


def test_coverage_costs_nothing_with_thousands_of_open_assignments():
    plan = plan_of([1] * 5000)
    assignment = plan.assign()
    assert len(assignment.units) > 200
    plan.open |= dict.fromkeys(range(1, 2000), assignment)
    began = time.thread_time()
    for _ in range(100):
        assert plan.coverage == 0
    assert time.thread_time() - began < 0.1
