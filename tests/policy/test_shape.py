"""S and the stripe: how the units of a source are divided among streams, and how many are covered."""

from __future__ import annotations

import pytest

from cachecd.model import Cursor, Lane
from cachecd.policy.granting import shape_of
from cachecd.policy.streams import Blocks

SHARE, SHARD = 1 << 40, 1 << 28


@pytest.mark.parametrize(
    ("units", "streams", "stripe", "lanes"),
    [(1, 1, 1, 1), (2, 2, 1, 1), (6, 4, 1, 1), (16, 8, 1, 2), (64, 8, 8, 8), (256, 8, 32, 16)],
)
def test_few_units_are_divided_one_by_one(units, streams, stripe, lanes):
    shape = shape_of(8, units, SHARE, SHARD, 0)
    assert (shape.streams, shape.stripe, shape.lanes) == (streams, stripe, lanes)


def test_each_stream_has_units_whatever_their_number():
    for units in range(1, 600):
        shape = shape_of(8, units, SHARE, SHARD, 0)
        counts = [shape.units_in(stream, 0, (units,)) for stream in range(shape.streams)]
        assert sum(counts) == units
        assert min(counts) > 0
        assert max(counts) - min(counts) <= shape.stripe


def test_a_small_share_has_fewer_streams():
    assert shape_of(8, 1000, 12 * SHARD, SHARD, 0).streams == 3
    assert shape_of(8, 1000, SHARD, SHARD, 0).streams == 1


def test_a_unit_in_hand_is_covered_by_its_part():
    blocks = Blocks(shape_of(1, 4, SHARE, SHARD, 0), (4,))
    lanes = (Lane(0, 0, 0, 1, 100, 7, 25), Lane(0, 1, 1, 1, 100, 0, 0), Lane(0, 2, 2, 1, 0, 3, 9))
    assert blocks.covered(0, Cursor()) == 0
    assert blocks.covered(0, Cursor(0, 0, 3, lanes)) == 0.25
    assert blocks.covered(0, Cursor(0, 0, 4, lanes[:1])) == 3.25
    assert blocks.covered(0, Cursor(1, 0, 1, lanes[:1])) == 4, "each was covered in the first pass"
