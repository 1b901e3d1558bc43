"""Finds records that no live shard has, from sidecars that the tests write."""

from __future__ import annotations

import json

import pytest

from cachecd.daemon.cached_records import cached_records
from cachecd.disk.publish import publish
from cachecd.model import Cursor, Lane, Unit
from cachecd.policy.values import Piece
from cachecd_client._core import ShardWriter
from tests.disk.shards import directory, make, write


@pytest.fixture
def layout(tmp_path):
    return directory(tmp_path)


def unit(number: int, etag: str = "etag") -> Unit:
    return Unit(number, f"key-{number}", 100, etag)


def pieces(layout, numbers, excluded=(), etag="etag", shards=((0, 0),)):
    held = cached_records(layout, shards, 100)
    return held.pieces(
        [unit(number, etag) for number in numbers], dict.fromkeys(excluded, frozenset())
    )


def test_unit_in_no_shard_is_missing_unless_it_is_excluded(layout):
    make(layout, 0)  # units 0 and 1
    assert pieces(layout, range(4)) == [Piece(2), Piece(3)]
    assert pieces(layout, range(4), {"key-2"}) == [Piece(3)]
    assert pieces(layout, [2], (), "new") == [Piece(2)]


def test_changed_unit_is_not_missing(layout):
    write(layout, 0, lanes=(Lane(0, 0, 1, 5, 100, 3, 10),))
    publish(layout, 0)
    assert pieces(layout, [1]) == [Piece(1, 3)]
    assert pieces(layout, [1], etag="new") == []


def test_only_the_named_versions_count(layout):
    make(layout, 0, 3)  # units 0, 1 and 30, 31
    write(layout, 0, 1, [(1, "key-1")])
    publish(layout, 0, 1)
    assert pieces(layout, [0, 1, 30, 31], shards=[(3, 0)]) == [Piece(0), Piece(1)]
    assert pieces(layout, [0, 1], shards=[(0, 1)]) == [Piece(0)]
    assert pieces(layout, [0, 1], shards=[(0, 0)]) == []


@pytest.mark.parametrize("damage", ["gone", "directory"])
def test_named_shard_without_its_sidecar_is_lost(layout, damage):
    make(layout, 0, 3)
    layout.sidecar(0).unlink()
    if damage == "directory":
        layout.sidecar(0).mkdir()
    assert cached_records(layout, [(0, 0), (3, 0)], 100).lost == [(0, 0)]


def covering(layout, number, ordinals, meta):
    """A published shard of records of unit 5."""
    writer = ShardWriter(str(layout.temporary(number)), 1 << 20)
    writer.describe(5, b"key-5", 0, b"etag")
    for ordinal in ordinals:
        assert writer.append(b"x", 5, ordinal)
    writer.finish(json.dumps(meta))
    publish(layout, number)


def test_records_that_were_passed_over_are_not_missing(layout):
    """Skipped records between two cursors count as covered, wherever they are in the unit."""
    before, after = (Cursor(0, 0, 9, (Lane(0, 3, 5, 1, 100, n, 0),)) for n in (1, 8))
    covering(layout, 0, (2, 6), {"before": before.pack(), "after": after.pack()})
    assert pieces(layout, [5]) == [Piece(5, 0, 1), Piece(5, 8)]
    covering(layout, 3, (10,), {"before": after.pack(), "after": Cursor(0, 0, 9).pack()})
    assert pieces(layout, [5], shards=[(0, 0), (3, 0)]) == [Piece(5, 0, 1)]


def test_supplement_covers_units_up_to_its_cursor(layout):
    """The last part was not begun, and the second part has an open lane."""
    parts = [[0, 5, 2, 7], [1, 6, 3, 0], [2, 7, 4, 0]]
    after = Cursor(0, 0, 2, (Lane(0, 1, 6, 1, 100, 5, 0),))
    meta = {"before": Cursor().pack(), "after": after.pack(), "parts": parts}
    covering(layout, 2, (3, 5), meta)
    found = pieces(layout, [5, 6, 7], shards=[(2, 0)])
    assert found == [Piece(5, 0, 2), Piece(5, 7), Piece(6, 0, 3), Piece(6, 5), Piece(7)]


def test_unit_is_covered_up_to_the_record_at_which_it_was_skipped(layout):
    skipped = [5, "key-5", 1, 3, "cut", False]
    meta = {"before": Cursor().pack(), "after": Cursor(0, 0, 9).pack(), "skipped": [skipped]}
    covering(layout, 0, (0, 1), meta)
    assert pieces(layout, [5]) == [Piece(5, 3)]
