"""The order of a block: golden values, for cursors rest on it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.listing.permutation import BlockOrder


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(1, 300), min_size=1, max_size=4))
def test_every_block_is_a_permutation_of_its_units(seed, sizes):
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    begin = 0
    for block, end in enumerate(ends):
        order = BlockOrder(seed, block, ends)
        assert sorted(order.unit(g) for g in range(begin, end)) == list(range(begin, end))
        for outside in (begin - 1, end):
            with pytest.raises(IndexError):
                order.unit(outside)
        begin = end


def test_order_is_the_same_for_ever():
    ends = (256, 768)
    assert [BlockOrder(0, 0, ends).unit(g) for g in range(6)] == [10, 194, 53, 64, 48, 254]
    assert [BlockOrder(0, 1, ends).unit(g) for g in range(256, 262)] == [
        440,
        592,
        314,
        650,
        265,
        699,
    ]
    assert [BlockOrder(2**64 - 1, 0, ends).unit(g) for g in range(6)] == [
        199,
        225,
        134,
        66,
        238,
        26,
    ]
