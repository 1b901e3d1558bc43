"""Where windows lie and how they are cut into units, as arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd.config.array import ArrayConfig
from cachecd.model import Unit
from cachecd.sampler.formats import windows
from cachecd.sampler.formats.windows import Cut

SMALL = st.integers(1, 40)


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    grain = draw(st.sampled_from([1, 1, 2, 3]))
    window = grain * draw(SMALL)
    config = ArrayConfig(window=window, stride=grain * draw(SMALL))
    rows, at = window + draw(st.integers(0, 500)), draw(st.integers(0, 200))
    row_bytes = draw(st.integers(1, 20))
    return Cut.of(config, rows, grain, at, row_bytes, row_bytes * draw(st.integers(1, 3)))


@given(cuts())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_every_window_is_in_one_unit_and_is_found_from_where_it_begins(cut):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "TARGET", 1000)
        units = [Unit(0, "key", size, begin=begin) for begin, size in cut.units()]
    assert units[0].begin == 0
    assert len({unit.begin for unit in units}) == len(units)
    expected = [nth * cut.stride for nth in range(cut.count)]
    found = [list(cut.of_unit(unit)) for unit in units]
    assert [start for unit in found for _, start in unit] == expected
    assert len(set(expected)) == len(expected)
    for unit, its in zip(units, found, strict=True):
        for nth, (offset, start) in enumerate(its):
            assert 0 <= start <= cut.rows - cut.window
            assert offset == cut.at + start * cut.row_bytes - unit.begin >= 0
            if cut.dense:  # whole in the bytes that are fetched
                assert offset + cut.window * cut.row_bytes <= unit.size
            if offset:
                rest = Unit(0, "key", unit.size, offset=offset, begin=unit.begin)
                assert list(cut.of_unit(rest)) == its[nth:]
        if not cut.dense:
            assert unit.size == len(its) * cut.window * cut.row_bytes
