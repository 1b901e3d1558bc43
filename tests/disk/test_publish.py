"""Shards are published completely, marked, copied without excluded records, and deleted."""

from __future__ import annotations

import os

import pytest

from cachecd.disk import publish
from cachecd.errors import DamagedError, NameTakenError
from cachecd_client import _core
from tests.disk.shards import contents, directory, make, payload, tree, write


@pytest.fixture
def layout(tmp_path):
    return directory(tmp_path)


def test_published_shard_has_both_names(layout, monkeypatch):
    seen = []
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda *paths: (rename(*paths), seen.append(tree(layout))))
    write(layout, 5)
    occupied = publish.publish(layout, 5)
    shard, sidecar = "0000000005.tfrecord", "0000000005.tfrecord.idx"
    assert seen == [["0000000005.new", sidecar], [shard, sidecar]], (
        "never a shard without its sidecar"
    )
    paths = (layout.shard(5), layout.sidecar(5))
    assert occupied == sum(path.stat().st_blocks * 512 for path in paths)
    assert len(contents(layout, 5)) == 6


def test_shard_without_records_is_a_sidecar_alone(layout):
    write(layout, 5, records=0)
    publish.publish(layout, 5, is_empty=True)
    assert tree(layout) == ["0000000005.tfrecord.idx"]


@pytest.mark.parametrize("name", ["shard", "sidecar"])
def test_nothing_is_overwritten(layout, name):
    write(layout, 5)
    taken = getattr(layout, name)(5)
    taken.write_bytes(b"of somebody")
    with pytest.raises(NameTakenError, match=str(taken)):
        publish.publish(layout, 5)
    publish.discard(layout, 5)
    assert tree(layout) == [taken.name]
    assert taken.read_bytes() == b"of somebody"


def test_mark_of_a_number_stays_until_its_last_file_is_deleted(layout):
    make(layout, 4)
    make(layout, 4, version=1)
    make(layout, 4, version=2)
    publish.mark_bad(layout, 4, 0)
    publish.mark_retired(layout, [(4, 2)])
    publish.unlink(layout, [(4, 0), (4, 2)])
    assert tree(layout) == ["0000000004.1.tfrecord", "0000000004.1.tfrecord.idx", "0000000004.old"]
    publish.unlink(layout, [(4, 1)])
    assert tree(layout) == []
    publish.unlink(layout, [(4, 1)])


def test_copy_omits_only_the_excluded_records(layout):
    write(layout, 4, units=[(7, "a"), (8, "b"), (9, "c")], records=4)
    publish.publish(layout, 4)
    before = _core.Sidecar.read(str(layout.sidecar(4)))
    publish.copy_without(layout, 4, 0, {b"b": frozenset()})
    assert publish.publish(layout, 4, 1) <= publish.allocated(layout, 4, 0)
    every = contents(layout, 4)
    assert contents(layout, 4, 1) == [row for row in every if row[0] != 8]
    after = _core.Sidecar.read(str(layout.sidecar(4, 1)))
    assert after.meta == before.meta
    assert after.table == [row for row in before.table if row[1] != b"b"]
    write(layout, 6, units=[(100, "b")], records=4)
    publish.publish(layout, 6)
    assert (
        after.digest + _core.Sidecar.read(str(layout.sidecar(6))).digest
    ) % 2**64 == before.digest, "digests name content, wherever it is"
    assert payload(8, 0) not in layout.shard(4, 1).read_bytes()


def test_copy_omits_only_the_excluded_samples_of_the_object(layout):
    write(layout, 4, units=[(7, "a"), (8, "b")], records=4)
    publish.publish(layout, 4)
    publish.copy_without(layout, 4, 0, {b"b": frozenset({"1", "3", "9"})})
    publish.publish(layout, 4, 1)
    left = [row for row in contents(layout, 4) if row[:2] not in ((8, 1), (8, 3))]
    assert contents(layout, 4, 1) == left
    assert payload(8, 3) not in layout.shard(4, 1).read_bytes()


@pytest.mark.parametrize("place", [5, -1])
def test_corrupt_record_is_never_copied(layout, place):
    make(layout, 4)
    content = bytearray(layout.shard(4).read_bytes())
    content[place] ^= 1
    layout.shard(4).write_bytes(content)
    with pytest.raises(DamagedError):
        publish.copy_without(layout, 4, 0, {b"other": frozenset()})
    assert not layout.temporary(4, 1).exists()
    with pytest.raises(DamagedError):
        publish.copy_without(layout, 4, 0, {b"key-4-0": frozenset("9"), b"key-4-1": frozenset("9")})
    layout.sidecar(4).write_bytes(b"damaged")
    with pytest.raises(DamagedError):
        publish.copy_without(layout, 4, 0, {b"other": frozenset()})


@pytest.mark.parametrize("place", [".", "shards"])
def test_directory_with_an_unknown_file_stays(layout, place):
    (layout.root / place / "mine").write_bytes(b"x")
    layout.identity.write_bytes(b"x")
    publish.remove_generation(layout)
    assert (layout.root / place / "mine").exists()
    assert layout.identity.exists(), "the next start knows what it was"
