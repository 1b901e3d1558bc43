"""The catalogs of other releases: taken up, refused untouched, or set apart and read once more."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from cachecd.catalog import VERSION, Catalog
from cachecd.errors import ConfigError
from cachecd.model import SetAside, ShardId

# Made by those releases themselves: three shards, of which 1 is retired, 2 barred and 3 still open.
MADE = Path(__file__).parent / "catalogs"


def made(path: Path, version: int, *more: str) -> Path:
    text = (MADE / f"version-{version}.sql").read_text()
    with sqlite3.connect(path) as db:
        db.executescript(text)
        for statement in more:
            db.execute(statement)
    db.close()
    return path


@pytest.mark.parametrize("version", [5])
def test_a_catalog_of_an_earlier_release_is_taken_up_with_all_that_is_in_it(tmp_path, version):
    path = made(tmp_path / "catalog.sqlite", version)
    for _ in range(2):  # and again, as it is now
        catalog = Catalog(path)
        assert (catalog.rebuilt, catalog.lost) == (False, "")
        assert catalog.excluded("train") == [("file:///source", "0009.bin", 0)]
        assert catalog.set_aside("train") == [SetAside(9, "0009.bin", "excluded by hand")]
        assert (catalog.plan("train") or {})["egress"] == 123456
        _, rows = catalog.shards("train")
        assert rows["digest"].tolist() == [0 if version == 4 else 77] * 2
        assert [list(part) for _, _, units in catalog.assignments("train") for part in units] == [
            [5, 0, 0, 0],
            [6, 7, 0, 0],
        ]
        assert catalog.held(ShardId("train", 2))[0].tolist() == [3, 4]
        catalog.close()
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)


def test_a_catalog_of_a_newer_release_is_refused_and_not_touched(tmp_path):
    path = made(tmp_path / "catalog.sqlite", 5, f"PRAGMA user_version={VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="made by a newer cachecd"):
        Catalog(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["catalog.sqlite"]


@pytest.mark.parametrize("large", [False, True])
def test_a_catalog_of_another_form_is_set_apart_and_what_no_shard_says_is_carried_over(
    tmp_path, large
):
    more = ["ALTER TABLE shards RENAME COLUMN units TO held", "PRAGMA user_version=3"]
    if large:
        more += ["CREATE TABLE filler AS SELECT zeroblob(600000) AS b"]
    path = made(tmp_path / "catalog.sqlite", 4, *more)
    for opened in range(2):  # a start that was killed and the next
        catalog = Catalog(path)
        assert catalog.excluded("train") == [("file:///source", "0009.bin", 0)]
        assert catalog.carried_egress("train") == 123456
        assert catalog.carried_marks("train") == {1: (True, False), 2: (False, True)}
        assert ("1 exclusions, 2 marks of shards" in catalog.lost) == (opened == 0)
        assert "lost: plans" in catalog.lost or opened
        catalog.close()
    assert (tmp_path / "catalog.sqlite.damaged").exists()


def test_a_catalog_set_apart_that_the_limit_has_no_room_for_goes_when_it_was_read(tmp_path):
    more = ["PRAGMA user_version=3", "CREATE TABLE filler AS SELECT zeroblob(600000) AS b"]
    more += ["ALTER TABLE shards RENAME COLUMN units TO held"]
    path = made(tmp_path / "catalog.sqlite", 4, *more)
    catalog = Catalog(path, lambda: False)
    assert catalog.excluded("train") == [("file:///source", "0009.bin", 0)]
    assert "cache.limit has no room" in catalog.lost
    assert not (tmp_path / "catalog.sqlite.damaged").exists()
    catalog.close()


def test_a_start_that_was_killed_while_it_set_a_catalog_apart_carries_over_all_the_same(tmp_path):
    made(tmp_path / "catalog.sqlite.damaged", 5)
    catalog = Catalog(tmp_path / "catalog.sqlite")
    assert catalog.excluded("train") == [("file:///source", "0009.bin", 0)]
    catalog.close()


def test_a_catalog_that_is_no_database_is_set_apart_and_the_loss_is_said(tmp_path):
    path = tmp_path / "catalog.sqlite"
    path.write_bytes(b"nonsense" * 1000)
    catalog = Catalog(path)
    assert catalog.rebuilt
    assert "0 exclusions" in catalog.lost
    assert (tmp_path / "catalog.sqlite.damaged").read_bytes() == b"nonsense" * 1000
    catalog.close()
