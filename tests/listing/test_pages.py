"""The units of the streams: together every unit once, in an order that no page size changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.listing.pages import units_of
from cachecd.listing.table import Table
from cachecd.model import Shape, Unit
from tests.listing.sources import units


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    table = Table(tmp_path_factory.mktemp("pages") / "listing.sqlite")
    for start in range(0, 2000, 1000):
        table.add(table.compare(units(start, start + 1000)))
    table.close_block()
    assert table.ends == (256, 768, 1792, 2000)
    yield table
    table.close()


def walk(table, shape, stream, count, excluded=()):
    """All units of a stream, and their places."""
    found, block, place = [], 0, 0
    while True:
        page = units_of(
            table, shape, stream, block, place, count, dict.fromkeys(excluded, frozenset())
        )
        assert len(page.units) <= count
        found += [((page.block, page.place + n), unit) for n, unit in enumerate(page.units)]
        if page.more == "end":
            return found
        assert page.units
        block, place = page.block, page.place + len(page.units)


@given(
    st.integers(1, 9), st.sampled_from([1, 8, 32]), st.integers(0, 2**64 - 1), st.integers(1, 1024)
)
def test_streams_have_every_unit_once(table, streams, stripe, seed, count):
    shape = Shape(streams, stripe, 16, 1 << 20, seed)
    walks = [walk(table, shape, stream, count) for stream in range(streams)]
    assert sorted(unit.number for found in walks for _, unit in found) == list(range(2000))
    for found in walks:
        places = [place for place, _ in found]
        assert places == sorted(set(places))
        blocks = [block for block, _ in places]
        assert {b: blocks.count(b) for b in blocks} == {
            b: shape.units_in(walks.index(found), b, table.ends) for b in set(blocks)
        }


def test_page_size_does_not_change_the_order(table):
    shape = Shape(3, 8, 16, 1 << 20, 1)
    assert walk(table, shape, 1, 1024) == walk(table, shape, 1, 7)


def test_excluded_unit_leaves_its_place(table):
    shape = Shape(1, 32, 16, 1 << 20, 0)
    every = walk(table, shape, 0, 1024)
    victim = every[5][1]
    left = walk(table, shape, 0, 1024, {victim.key})
    assert left[5] == (every[5][0], None)
    assert left[:5] + left[6:] == every[:5] + every[6:]
    assert isinstance(victim, Unit)


def test_nothing_is_fed_of_a_block_that_has_not_ended(tmp_path):
    table = Table(tmp_path / "listing.sqlite")
    shape = Shape(2, 8, 16, 1 << 20, 0)
    table.add(table.compare(units(0, 255)))
    assert units_of(table, shape, 0, 0, 0).units == ()
    table.add(table.compare(units(255, 256)))
    page = units_of(table, shape, 0, 0, 120)
    assert (len(page.units), page.more) == (8, "end")
    page = units_of(table, shape, 0, 0, 128)
    assert (page.block, page.place, page.units, page.more) == (1, 0, (), "end")
    table.close()
