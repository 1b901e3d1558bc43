"""Which units are spoken for: bits a unit, and a number of free ones, say what counting them would."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd.unitcount import UnitCount

NUM = 40
UNITS = st.lists(st.integers(0, NUM - 1), max_size=12)
KINDS = ["hold", "release", "set_aside", "take_back", "gone", "back", "extend"]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), UNITS), max_size=30)


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


@settings(deadline=None)
@given(STEPS, st.integers(0, NUM))
def test_the_number_of_free_units_is_what_counting_finds(steps, there):
    count = UnitCount()
    count.extend(there)
    holders, aside, away = [0] * NUM, [False] * NUM, [False] * NUM
    for step, units in steps:
        if step == "extend":
            more = min(len(units), NUM - there)
            count.extend(more)
            there += more
            units = []
        elif step == "release":  # only what is held
            units = [u for i, u in enumerate(units) if units[: i + 1].count(u) <= holders[u]]
        if step != "extend":
            getattr(count, step)(units)
        for unit in units:
            holders[unit] += {"hold": 1, "release": -1}.get(step, 0)
            aside[unit] = {"set_aside": True, "take_back": False}.get(step, aside[unit])
            away[unit] = {"gone": True, "back": False}.get(step, away[unit])
        free = [not (holders[u] or aside[u] or away[u]) for u in range(NUM)]
        assert count.free(range(NUM)).tolist() == free
        assert (count.num_free, count.num_aside) == (sum(free[:there]), sum(aside))
        assert count.num_gone == sum(away)


def test_a_million_units_take_a_quarter_of_a_megabyte():
    count = UnitCount()
    count.extend(1_000_000)
    count.hold(np.arange(999_000))
    assert count.num_free == 1000
    assert count._held.nbytes + count._aside.nbytes <= 250_000
