"""listing.sqlite: what is added stays, under its number; a damaged file is a typed error."""

from __future__ import annotations

import contextlib
import random
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.errors import DamagedError, SourceError
from cachecd.listing.table import Table
from cachecd.model import ObjectInfo
from tests.listing.sources import unit, units


@pytest.fixture
def table(tmp_path):
    table = Table(tmp_path / "listing.sqlite")
    yield table
    table.close()


def add(table, page, defer=False):
    found = table.compare(page)
    table.add(found, defer=defer)
    return found


def test_parts_of_an_object_are_units_of_their_own(table):
    parts = [ObjectInfo("a.npy", 4, "e", begin) for begin in (8, 0, 4)]
    add(table, [*parts, ObjectInfo("a", 1)])
    listed = [u for u in table.units(range(4)) if u.key == "a.npy"]
    assert [(u.begin, u.number) for u in listed] == [(8, 0), (0, 1), (4, 2)]
    assert table.has_keys(["a.npy", "b"]) == {"a.npy"}
    assert table.compare(parts[::-1]).numbers == (2, 1, 0)


def test_names_that_are_no_unicode_are_kept(table):
    odd = ObjectInfo("a/\udcff\x00'\u00e9.jpg", 1, "\udc80", 0, "\udcfe")
    add(table, [odd])
    (read,) = table.units([0])
    assert (read.key, read.etag, read.label) == (odd.key, odd.etag, odd.label)
    assert table.compare([odd]).numbers == (0,)
    assert table.compare([odd]).cost == 0
    assert table.has_keys([odd.key]) == {odd.key}


@pytest.mark.parametrize("bad", [ObjectInfo("a", -1), ObjectInfo("a", 1, "", 1 << 63)])
def test_impossible_size_is_the_sources_fault(table, bad):
    with pytest.raises(SourceError, match="'a'"):
        table.compare([bad])


@given(
    st.lists(
        st.lists(
            st.builds(
                ObjectInfo,
                st.text("ab\udcff", max_size=3),
                st.integers(0, 5),
                st.sampled_from(["", "x", "y"]),
                st.integers(0, 1),
            ),
            max_size=20,
        ),
        max_size=8,
    )
)
def test_table_agrees_with_a_dictionary(tmp_path_factory, listed):
    table = Table(tmp_path_factory.mktemp("t") / "listing.sqlite")
    expected: dict[tuple[str, int], ObjectInfo] = {}
    for page in listed:
        first: dict[tuple[str, int], ObjectInfo] = {}
        for one in page:
            first.setdefault((one.key, one.begin), one)
        expected.update(first)
        before = len(table)
        found = add(table, page)
        assert len(found.new) == len(table) - before
    read = table.units(range(len(table)))
    assert [ObjectInfo(u.key, u.size, u.etag, u.begin, u.label) for u in read] == [
        *expected.values()
    ]
    assert table.num_bytes == sum(one.size for one in expected.values())
    table.close()


# --- the file


@pytest.mark.parametrize("damage", ["text", "page", "version", "empty", "schema"])
def test_damaged_file_is_a_typed_error(tmp_path, damage):
    path = tmp_path / "listing.sqlite"
    table = Table(path)
    for start in range(0, 3000, 1000):
        add(table, units(start, start + 1000))
    table.close()
    if damage == "text":
        path.write_bytes(b"no database" * 1000)
    elif damage == "page":
        content = bytearray(path.read_bytes())
        content[8192:] = bytes(len(content) - 8192)
        path.write_bytes(content)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 9" if damage == "version" else "DROP TABLE blocks")
        db.close()
    with pytest.raises(DamagedError, match=r"listing\.sqlite"):
        Table(path, blocks=1).units(range(1000))


def test_a_rotten_bit_anywhere_is_a_typed_error_or_changes_nothing(tmp_path):
    whole = tmp_path / "whole.sqlite"
    table = Table(whole)
    for start in range(0, 300, 100):
        add(table, units(start, start + 100))
    add(table, [ObjectInfo(unit(7).key, 1, "other", label="cat")], defer=True)
    table.finish()
    expected = facts(table)
    table.close()
    content = whole.read_bytes()
    for turn in range(1500):
        rng = random.Random(turn)
        rotten = bytearray(content)
        rotten[rng.randrange(len(rotten))] ^= 1 << rng.randrange(8)
        path = tmp_path / "listing.sqlite"
        path.write_bytes(rotten)
        with contextlib.suppress(DamagedError):
            table = Table(path, blocks=1)
            assert facts(table) == expected
        table.close()


def facts(table):
    numbers = (table.completed, table.num_bytes, table.ends)
    return numbers, table.units(range(len(table))), table.has_keys([unit(7).key])


def test_a_damaged_table_is_used_by_no_later_call_and_no_later_start(tmp_path):
    path = tmp_path / "listing.sqlite"
    table = Table(path)
    add(table, units(0, 1000))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE units SET label = 'dog' WHERE number = 700")
    db.close()
    assert len(table.units([699, 701])) == 2
    for call in (lambda: table.units([700]), lambda: table.units([1]), table.close_block):
        with pytest.raises(DamagedError, match=r"unit 700 has a wrong CRC\. Restart"):
            call()
    with pytest.raises(DamagedError, match="expected at least 1"):
        Table(path, blocks=1)


def test_a_unit_that_the_index_has_not_is_found(tmp_path):
    path = tmp_path / "listing.sqlite"
    table = Table(path)
    add(table, units(0, 300))
    table.check_index(range(300))
    table.close()
    content, key = path.read_bytes(), unit(120).key.encode()
    at = content.rindex(key)  # the index is behind the rows
    assert content.count(key) == 2
    path.write_bytes(content[:at] + key[:-5] + b"x" + key[-4:] + content[at + len(key) :])
    table = Table(path)
    table.check_index([7, 299])
    with pytest.raises(DamagedError, match="index"):
        table.check_index([119, 120])


def test_a_table_that_is_replaced_while_it_is_used_is_a_typed_error(tmp_path):
    table = Table(tmp_path / "listing.sqlite")
    add(table, units(0, 1000))
    table.close()
    (tmp_path / "listing.sqlite").unlink()
    with pytest.raises(DamagedError, match="totals"):
        table.units([0])


def test_cost_bounds_what_is_written(tmp_path):
    """Measured at its worst: keys in no order, in a table of some size."""
    table = Table(tmp_path / "listing.sqlite")
    numbers = [(n * 7919) % 50_000 for n in range(50_000)]
    sizes: list[int] = []
    for start in range(0, 50_000, 1000):
        found = table.compare([unit(n) for n in numbers[start : start + 1000]])
        before = table.allocated
        sizes.clear()
        table._db.set_progress_handler(lambda: sizes.append(table.allocated), 500)
        table.add(found)
        table._db.set_progress_handler(None, 0)
        assert max([*sizes, table.allocated]) - before <= found.cost
    assert max(sizes) > before, "it was looked at while it was written"
    table.close()
