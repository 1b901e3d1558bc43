"""The disk room reads the sidecars that a sampler's draft writes."""

from __future__ import annotations

import os

import pytest

from cachecd.disk import publish
from cachecd.disk.sidecar import holds, read_head
from cachecd.errors import DamagedError, LostError
from cachecd.model import Cursor, Lane, Skipped, Unit
from cachecd.sampler.draft import Draft, end_text
from tests.disk.shards import SHAPE, directory

BEFORE = Cursor(1, 0, 4, (Lane(0, 2, 20, 7, 99, 5, 50), Lane(0, 3, 21, 7, 99, 1, 10)))
AFTER = Cursor(1, 0, 6, (Lane(0, 3, 21, 7, 99, 1, 10), Lane(0, 5, 23, 7, 99, 2, 20)))
SKIPPED = (Skipped(22, "k/\udcff", 1 << 63, 0, "gone", True),)


@pytest.fixture
def layout(tmp_path):
    return directory(tmp_path)


def seal(layout, number, keys):
    """A shard with one record of each of these (unit, key), between BEFORE and AFTER."""
    path = str(layout.temporary(number))
    draft = Draft(path, SHAPE.capacity, None, lambda _: None, {"number": number}, skips=8192)
    for unit, key in keys:
        assert draft.add({"x": unit}, Unit(unit, key, 99, "etag"), 5)
    sealed = draft.seal(end_text(BEFORE, AFTER, 1, 5, SKIPPED))
    return sealed, publish.publish(layout, number)


def test_cursors_and_skipped_units_are_read(layout):
    sealed, occupied = seal(layout, 0, [(20, "a"), (23, "\udcff")])
    head = read_head(layout.sidecar(0))
    assert (head.before, head.after, head.skipped) == (BEFORE, AFTER, SKIPPED)
    assert (head.records, head.data_bytes) == (2, sealed.data_bytes)
    assert head.digest == sealed.digest != 0
    assert (head.ended, head.passed) == (1, 5)
    assert occupied == sealed.allocated
    assert holds(layout.sidecar(0), {b"a": frozenset()})
    assert holds(layout.sidecar(0), {"\udcff".encode("utf-8", "surrogatepass"): frozenset()})
    assert not holds(layout.sidecar(0), {b"b": frozenset()})


@pytest.mark.parametrize("place", [8, 60, 100])
def test_damaged_head_is_named(layout, place):
    seal(layout, 0, [(20, "a")])
    content = bytearray(layout.sidecar(0).read_bytes())
    content[place] ^= 1
    layout.sidecar(0).write_bytes(content)
    with pytest.raises(DamagedError, match=r"0000000000\.tfrecord\.idx"):
        read_head(layout.sidecar(0))


def test_missing_sidecar_is_damage(layout):
    with pytest.raises(DamagedError, match="is missing"):
        read_head(layout.sidecar(0))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("copy")])
def test_sidecar_that_is_no_regular_file_is_damage_even_if_a_link_leads_to_it(layout, make):
    seal(layout, 0, [(20, "a")])
    sidecar = layout.sidecar(0)
    sidecar.rename(sidecar.with_name("copy"))
    make(sidecar)
    with pytest.raises(LostError, match="is not a regular file"):
        read_head(sidecar)
