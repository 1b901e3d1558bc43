"""A walk that goes on from where a run left it, on a machine that has listed nothing yet."""

from __future__ import annotations

from cachecd.model import Assignment
from cachecd.plan import Plan
from tests.units import SHARD_SIZE, Units


def test_a_walk_goes_on_behind_what_a_run_has_had_as_soon_as_that_is_listed():
    units = Units([20_000] * 10)
    plan = Plan("train", "1-a", units, 0, SHARD_SIZE)
    plan.extend(False)
    plan.walk.cycle.skip_to(25)
    assert plan.walk.cycle.position == 10, "at the end of what is listed"
    assert plan.cursor == 25, "and who asks now goes on from there"
    assert not isinstance(plan.assign(), Assignment)
    saved = plan.to_json()
    plan = Plan("train", "1-a", units, 0, SHARD_SIZE)
    plan.restore(saved, [])
    units.append([20_000] * 30)
    plan.extend(False)
    assert plan.walk.cycle.position == 25


def test_a_cursor_of_a_later_pass_waits_for_the_listings_end():
    units = Units([20_000] * 10)
    plan = Plan("train", "1-a", units, 0, SHARD_SIZE)
    plan.extend(False)
    plan.walk.cycle.skip_to(25)
    plan.extend(True)
    cycle = plan.walk.cycle
    assert (cycle.passes, cycle.position) == (0, 5), "modulo the units listed"
