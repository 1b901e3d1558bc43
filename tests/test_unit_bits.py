"""Two bits a unit say what a count per unit would."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd.unitcount import UnitCount

UNITS = 40
SOME = st.lists(st.integers(0, UNITS - 1), max_size=12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), SOME),
        st.tuples(st.just("release"), SOME),
        st.tuples(st.just("aside"), SOME),
        st.tuples(st.just("back"), SOME),
        st.tuples(st.just("extend"), st.integers(0, UNITS)),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(STEPS)
def test_two_bits_a_unit_say_what_a_count_of_each_would(steps):
    count, held, aside, length = UnitCount(), Counter(), set(), 0
    for step, argument in steps:
        match step:
            case "hold":
                count.hold(argument)
                held.update(argument)
            case "release":
                units = list((Counter(argument) & held).elements())
                count.release(units)
                held.subtract(units)
            case "aside":
                count.set_aside(argument)
                aside.update(argument)
            case "back":
                back = aside.intersection(argument)
                count.take_back(back)
                aside -= back
            case "extend":
                count.extend(max(argument - length, 0))
                length = max(length, argument)
        free = [unit not in aside and not held[unit] for unit in range(length)]
        assert count.free(np.arange(length, dtype=np.uint64)).tolist() == free
        assert (count.num_free, count.num_aside) == (sum(free), len(aside))


def test_a_million_units_take_a_quarter_of_a_megabyte():
    count = UnitCount()
    count.extend(1_000_000)
    count.hold(np.arange(999_000))
    assert count.num_free == 1000
    assert count._held.nbytes + count._aside.nbytes <= 250_000
