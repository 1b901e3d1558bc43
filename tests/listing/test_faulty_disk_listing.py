"""A listing under a disk that fails, and killed before operations that change the disk: before each of them
in the long form, CACHECD_LONG=1, before some of each kind otherwise."""

from __future__ import annotations

import errno
import os
import shutil

import pytest

from tests.faults.disk import FaultyDisk
from tests.faults.victims import Victims
from tests.listing.sources import Source, unit, units

FIRST, LATER = 700, 1200
EVERY = 1 if "CACHECD_LONG" in os.environ else 7


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("listing")
    (folder / "d").mkdir()
    return FaultyDisk(folder / "control", folder / "d")


@pytest.fixture(scope="module")
def victims(disk):
    with Victims(disk, "tests.listing.deeds") as victims:
        yield victims


@pytest.fixture
def listed(disk):
    """A folder with a listing of FIRST units, and where the next copies of it may lie."""
    template = disk.root / "template"
    shutil.rmtree(template, ignore_errors=True)
    template.mkdir()
    with Source(template / "listing.sqlite") as source:
        source.list(units(0, FIRST))
    return template


@pytest.fixture
def copies(disk, listed):
    made = []

    def copy():
        folder = disk.root / f"copy{len(made)}"
        shutil.copytree(listed, folder)
        made.append(folder)
        return folder

    yield copy
    for folder in made:
        shutil.rmtree(folder)


def check(source, ends_before):
    """What was listed is there, under its number; blocks that were there are as they were."""
    table = source.table
    assert table.ends[: len(ends_before)] == ends_before
    assert len(table) in (FIRST, 1000, 1200) or len(table) == 900
    for number, found in zip(range(len(table)), source.units(range(len(table))), strict=True):
        assert found in (unit(number), unit(number, "other"))
    assert table.num_bytes == 100 * len(table)


def test_killed_anywhere_a_listing_goes_on(victims, copies):
    changes = victims.changes("list_units", str(copies()), LATER, "other")
    assert len(changes) > 30
    for index, *_ in changes[::EVERY]:
        folder = copies()
        victims.kill_at(index, "list_units", str(folder), LATER, "other")
        with Source(folder / "listing.sqlite") as source:
            check(source, (256, FIRST))
            source.list(units(0, LATER, "other"))
            assert len(source.table) == LATER
            assert source.units(range(1000)) == units(0, 1000, "other")
            assert source.table.ends[-1] == LATER


@pytest.mark.parametrize("code", [errno.EIO, pytest.param(errno.ENOSPC, marks=pytest.mark.long)])
def test_refused_anywhere_a_listing_goes_on(victims, copies, code):
    changes = victims.changes("list_units", str(copies()), LATER, "other")
    statuses = []
    for index, *_ in changes[3::EVERY]:
        folder = copies()
        statuses.append(victims.fail_at(index, code, "list_units", str(folder), LATER, "other"))
        with Source(folder / "listing.sqlite") as source:
            check(source, (256, FIRST))
            source.list(units(0, LATER, "other"))
            assert len(source.table) == LATER
            assert source.units(range(1000)) == units(0, 1000, "other")
    assert statuses.count(1) > len(statuses) / 2, "most of them are noticed"


def test_block_ends_only_after_its_transaction_was_synced(victims, copies):
    """The last operations of a commit: the file is synced, and the journal, cut to nothing, after it."""
    folder = copies()
    changes = [
        (operation, path.removeprefix(f"{folder}/"))
        for _, operation, path in victims.changes("list_units", str(folder), LATER)
    ]
    journal = "listing.sqlite-journal"
    cuts = [n for n, change in enumerate(changes) if change == ("truncate", journal)]
    assert len(cuts) >= 2
    for cut in cuts:
        assert changes[cut - 1] == ("sync", "listing.sqlite")
        assert changes[cut + 1] == ("sync", journal)
