"""Records that no live shard holds, by sidecars made for it."""

from __future__ import annotations

import json

import pytest

from cachecd.daemon.held_records import held_records
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


def pieces(layout, numbers, excluded=frozenset(), etag="etag", shards=((0, 0),)):
    held = held_records(layout, shards, 100)
    return held.pieces([unit(number, etag) for number in numbers], excluded)


def test_unit_in_no_shard_is_missing_unless_it_is_excluded(layout):
    make(layout, 0)  # units 0 and 1
    assert pieces(layout, range(4)) == [Piece(2), Piece(3)]
    assert pieces(layout, range(4), frozenset({"key-2"})) == [Piece(3)]
    assert pieces(layout, [2], frozenset(), "new") == [Piece(2)]


def test_unit_of_another_version_lacks_nothing(layout):
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
    assert held_records(layout, [(0, 0), (3, 0)], 100).lost == [(0, 0)]


def test_gap_between_records_is_a_piece(layout):
    writer = ShardWriter(str(layout.temporary(0)), 1 << 20)
    writer.describe(5, b"key-5", 0, b"etag")
    for ordinal in (1, 2, 6):
        assert writer.append(b"x", 5, ordinal)
    writer.finish(json.dumps({"after": Cursor(0, 0, 9).pack(), "skipped": []}))
    publish(layout, 0)
    assert pieces(layout, [5]) == [Piece(5, 0, 1), Piece(5, 3, 6)]
