"""Listings of scripted sources: the first, failed ones, later ones, and those that are refused."""

from __future__ import annotations

import pytest

from cachecd.errors import DiskError, RewrittenError, SourceError, SourceUnreachableError
from tests.listing.sources import Source, unit, units


@pytest.fixture
def source(tmp_path):
    with Source(tmp_path / "listing.sqlite") as source:
        yield source


def test_first_listing_has_every_unit(source):
    found = source.list(units(0, 5000))
    assert (found.new, found.rewritten, list(found.gone)) == (5000, 0, [])
    assert source.units(range(1000)) == units(0, 1000)
    assert source.table.ends == (256, 768, 1792, 3840, 5000)
    assert source.table.completed == 1
    assert source.blocks == 5 - 1, "two ended with the first page, the others with a page each"


def test_failed_listing_closes_its_block(source):
    with pytest.raises(SourceError, match="down"):
        source.list(units(0, 1000), fails=SourceError("down"))
    assert source.table.ends == (256, 768, 1000)
    assert source.table.completed == 0


def test_failed_listing_goes_on_where_it_was(source):
    listing = source.listing()
    with pytest.raises(SourceError):
        source.list(units(0, 1000), fails=SourceError("down"), listing=listing)
    found = source.list(units(1000, 1500), listing=listing)
    assert (found.new, list(found.gone)) == (1500, [])
    assert source.table.completed == 1


def test_later_listing_reports_what_changed(source):
    source.list(units(0, 3000))
    later = [*units(0, 100), unit(100, "other"), *units(101, 2990), *units(3000, 3100)]
    found = source.list(later)
    assert (found.new, found.rewritten, list(found.gone)) == (100, 1, list(range(2990, 3000)))
    assert source.units([100]) == [unit(100, "other")]
    found = source.list(units(0, 3100))
    assert (found.new, found.rewritten, list(found.gone)) == (0, 1, [])


def test_unchanged_source_is_listed_without_room(source):
    source.list(units(0, 3000))
    source.room.left = 0
    assert source.list(units(0, 3000)).new == 0
    with pytest.raises(DiskError):
        source.list(units(0, 3001))


def test_page_without_room_changes_nothing(source):
    source.list(units(0, 1000))
    before = source.table.allocated
    source.room.left = 1000
    with pytest.raises(DiskError):
        source.list(units(0, 3000))
    assert (len(source.table), source.table.allocated) == (1000, before)
    source.room.left = 1 << 30
    assert source.list(units(0, 3000)).new == 2000


def test_page_that_is_too_large_is_written_in_parts(source):
    source.room.page = 300_000
    assert source.list(units(0, 3000)).new == 3000
    assert source.room.most <= 300_000
    source.room.page = 1
    assert source.list(units(0, 3010)).new == 10, "one unit at least"
    assert source.units(range(2000, 3010)) == units(2000, 3010)


def test_rewritten_source_is_refused_at_a_start(source):
    source.list(units(0, 3000))
    with pytest.raises(RewrittenError, match="more than half of the 3000"):
        source.list(units(0, 3000, "other"), judges=True)
    assert source.units(range(1000)) == units(0, 1000)
    assert source.list(units(0, 3000), judges=True).rewritten == 0, "the endpoint was mended"
    later = [*units(0, 1400, "other"), *units(1400, 3000)]
    assert source.list(later, judges=True).rewritten == 1400
    assert source.units(range(1400, 1401)) == [unit(1400)]
    assert source.units([1399]) == [unit(1399, "other")]


def test_source_that_is_empty_now_is_not_believed(source):
    source.list(units(0, 10))
    with pytest.raises(
        SourceUnreachableError, match="the source is empty, but 10 units were listed"
    ):
        source.list([])
    assert source.table.completed == 1


def test_empty_source_is_listed(source):
    assert source.list([]).new == 0
    assert (source.table.completed, source.table.ends) == (1, ())


def test_listing_that_repeats_itself_ends(source):
    with pytest.raises(SourceUnreachableError, match="repeats itself"):
        source.list(units(0, 1000) * 50)
    source.list(units(0, 1000) * 5)
