"""Parts of units: what the rest of a unit is, once some of its parts are known."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cachecd.model import Outcome, UnitSlice
from cachecd.parts import Part, gaps, part_of, parts_made, parts_written, slices_of

END = 50  # records of a unit


def covered(parts: list[Part]) -> list[tuple[int, int]]:
    return sorted((p.unit, o) for p in parts for o in range(p.ordinal, p.stop or END))


@given(
    st.dictionaries(
        st.integers(0, 3),
        st.tuples(st.sets(st.integers(1, END - 1), max_size=6), st.sets(st.integers(0, 6))),
        min_size=1,
    )
)
def test_parts_and_the_gaps_between_them_are_every_record_once(units):
    there, lost = [], []
    for unit, (cuts, gone) in units.items():
        bounds = [0, *sorted(cuts), 0]
        for place, (begin, stop) in enumerate(pairwise(bounds)):
            (lost if place in gone else there).append(Part(unit, begin, 0, stop))
    known = {part.unit for part in there}
    assert covered(gaps(there)) == covered([part for part in lost if part.unit in known])


def test_a_unit_that_is_whole_has_no_gap():
    assert gaps([Part(1, 0, 0), Part(2, 0, 0, 7), Part(2, 7, 900)]) == []


def test_a_shards_parts_are_those_of_the_units_that_it_was_not_given_or_did_not_take_whole():
    units = [
        UnitSlice(1, "a", 9),
        UnitSlice(2, "b", 9, ordinal=4, offset=80),
        UnitSlice(3, "c", 9, ordinal=2, stop=6),
        UnitSlice(4, "d", 9, stop=8),
        UnitSlice(5, "e", 9, ordinal=3),
    ]
    rest = (UnitSlice(4, "d", 9, ordinal=5, stop=8), units[4])
    outcome = Outcome(1, 1, 1, 1, 1, 1.0, remainder=rest)
    made = [Part(2, 4, 80), Part(3, 2, 0, 6), Part(4, 0, 0, 5)]
    assert [*parts_made(units, outcome, {1, 2, 3, 4})] == made
    # The sidecar says the same, but where in the object a part begins.
    written, firsts = np.array([1, 2, 3, 4], np.uint64), np.array([0, 4, 2, 0], np.uint32)
    told = parts_written(written, firsts, [part_of(u) for u in rest], {3: 6, 4: 8})
    assert [*told] == [part._replace(offset=0) for part in made]


def test_a_slice_is_stored_and_found_again_and_one_stored_without_its_stop_goes_to_the_end():
    unit = UnitSlice(3, "c", 9, "tag", ordinal=2, offset=5, stop=6)
    listed = {3: UnitSlice(3, "c", 9, "tag")}
    assert slices_of([part_of(unit)], listed.__getitem__) == (unit,)
    assert slices_of([[3, 2, 5]], listed.__getitem__)[0].stop == 0
