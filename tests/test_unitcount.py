"""Which units are spoken for: how many are free is kept, and is what counting them would find."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd.unitcount import UnitCount

UNITS = st.lists(st.integers(0, 19), max_size=8)
KINDS = ["hold", "release", "set_aside", "take_back", "gone", "back"]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), UNITS), max_size=20)


def test_of_units_that_there_are_not_yet_nothing_is_held_or_set_aside():
    """A listing that goes on may meet units that the plan has not taken up."""
    count = UnitCount()
    for extended in (0, 1000):
        count.extend(extended)
        units = np.array([999, 1500, 10**6])
        assert not count.held(units).any()
        assert not count.aside(units).any()
        assert count.free(units).all()
        count.take_back([1500])
        count.release([1500])
        assert (count.num_free, count.num_aside) == (extended, 0)


@settings(deadline=None, max_examples=50)
@given(STEPS, st.integers(0, 20))
def test_the_number_of_free_units_is_what_counting_finds(steps, first):
    count = UnitCount()
    count.extend(first)
    count.extend(20 - first)
    holders, aside, away = [0] * 20, [False] * 20, [False] * 20
    for step, units in steps:
        if step == "release":  # only what is held
            units = [u for i, u in enumerate(units) if units[: i + 1].count(u) <= holders[u]]
        getattr(count, step)(units)
        for unit in units:
            holders[unit] += {"hold": 1, "release": -1}.get(step, 0)
            aside[unit] = {"set_aside": True, "take_back": False}.get(step, aside[unit])
            away[unit] = {"gone": True, "back": False}.get(step, away[unit])
        free = [not (holders[u] or aside[u] or away[u]) for u in range(20)]
        assert count.free(range(20)).tolist() == free
        assert (count.num_free, count.num_aside) == (sum(free), sum(aside))
        assert count.num_gone == sum(away)
