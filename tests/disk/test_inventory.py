"""The shards, cursors and leftovers that a start finds on disk."""

from __future__ import annotations

import os

import pytest

from cachecd.disk import publish
from cachecd.disk.durable import Skips, State, read_state
from cachecd.disk.inventory import find_holders, remove_leftovers, take_inventory
from cachecd.disk.snapshot import write_snapshot
from cachecd.model import Cursor
from tests.disk.shards import SHAPE, cursor, directory, make, tree, write


@pytest.fixture
def layout(tmp_path):
    return directory(tmp_path)


def start(layout, leased=(), state=None, excluded=()):
    return take_inventory(
        layout, SHAPE, state or State(), leased, dict.fromkeys(excluded, frozenset())
    )


def statuses(found):
    return {(shard.number, shard.facts.version): shard.status for shard in found.shards}


def test_empty_directory_has_fresh_streams(layout):
    found = start(layout)
    assert found.shards == ()
    assert found.heads == ((0, Cursor()),) * 3


def test_shards_and_heads_are_found(layout):
    make(layout, 0, 3, 1, 2)
    found = start(layout)
    assert statuses(found) == {(n, 0): "live" for n in (0, 1, 2, 3)}
    assert found.heads == ((2, cursor(6)), (1, cursor(4)), (1, Cursor()))
    shard = found.shards[0]
    assert (shard.facts.records, shard.facts.ended, shard.elders) == (6, 2, ())
    assert shard.facts.data_bytes == layout.shard(0).stat().st_size
    assert shard.facts.allocated == publish.allocated(layout, 0, 0)
    assert found.read == 4 + 2


def test_snapshot_spares_reading_sidecars(layout):
    make(layout, *range(12))
    found = start(layout)
    write_snapshot(layout.snapshot, [shard[:2] for shard in found.shards])
    again = start(layout)
    assert (again.shards, again.heads) == (found.shards, found.heads)
    assert again.read == SHAPE.streams, "the newest of each stream alone"
    make(layout, 12)
    assert start(layout).read == SHAPE.streams + 1
    layout.snapshot.write_bytes(b"damaged")
    assert start(layout).shards[:-1] == found.shards


def test_snapshot_is_not_used_for_changed_files(layout):
    make(layout, 0, 1)
    write_snapshot(layout.snapshot, [shard[:2] for shard in start(layout).shards])
    os.truncate(layout.shard(0), 10)
    os.truncate(layout.sidecar(1), 0)
    assert statuses(start(layout)) == {(0, 0): "damaged", (1, 0): "lost"}


@pytest.mark.parametrize("half", ["sidecar", "shard"])
def test_half_a_publication_is_a_leftover(layout, half):
    make(layout, 0, 3)
    getattr(layout, "shard" if half == "sidecar" else "sidecar")(3).unlink()
    found = start(layout)
    assert statuses(found) == {(0, 0): "live"}
    assert found.heads[0] == (1, cursor(3))
    remove_leftovers(layout, found, State())
    assert tree(layout) == ["0000000000.tfrecord", "0000000000.tfrecord.idx"]


def test_lost_sidecar_within_a_stream_is_reported(layout):
    make(layout, 0, 1, 3, 6)
    layout.sidecar(3).unlink()
    assert statuses(start(layout)) == {
        (0, 0): "live",
        (1, 0): "live",
        (3, 0): "lost",
        (6, 0): "live",
    }


def test_damaged_newest_sidecar_gives_no_cursor_and_uses_its_number(layout):
    make(layout, 0, 3)
    layout.sidecar(3).write_bytes(b"damaged" * 100)
    found = start(layout)
    assert statuses(found) == {(0, 0): "live", (3, 0): "lost"}
    assert found.heads[0] == (2, cursor(3))


def test_quarantined_shard_has_an_excluded_sample_if_its_bytes_have_it(layout):
    make(layout, 0, 3, 6)
    for number in (0, 3, 6):
        publish.mark_bad(layout, number, 0)
    data = bytearray(layout.shard(6).read_bytes())
    data[40] ^= 1
    layout.shard(6).write_bytes(data)
    excluded = {key: frozenset({"2"}) for key in ("key-3-1", "key-6-0")}
    found = take_inventory(layout, SHAPE, State(), (), excluded)
    assert statuses(found) == {(0, 0): "damaged", (3, 0): "excluded", (6, 0): "damaged"}
    assert find_holders(layout, excluded) == [(3, 0), (6, 0)], "damaged: it may have the sample"
    assert find_holders(layout, {"key-0-0": frozenset({"3"})}) == []


def test_quarantined_shard_is_to_be_made_again(layout):
    make(layout, 0, 3)
    publish.mark_bad(layout, 0, 0)
    publish.mark_bad(layout, 3, 0)
    found = start(layout, excluded={"key-3-1"})
    assert statuses(found) == {(0, 0): "damaged", (3, 0): "excluded"}
    make(layout, 6)
    for number in (0, 6):
        publish.drop_data(layout, number, 0)
    assert statuses(start(layout)) == {(0, 0): "damaged", (3, 0): "damaged", (6, 0): "damaged"}


def test_next_version_replaces_the_first(layout):
    make(layout, 0, 3)
    publish.mark_bad(layout, 0, 0)
    make(layout, 0, version=1)
    found = start(layout, leased={(0, 0)})
    assert statuses(found) == {(0, 1): "live", (3, 0): "live"}
    assert found.shards[0].elders == ((0, publish.allocated(layout, 0, 0)),)
    assert found.dropped == ()
    found = start(layout)
    assert found.dropped == ((0, 0),)
    remove_leftovers(layout, found, State())
    assert tree(layout)[:2] == ["0000000000.1.tfrecord", "0000000000.1.tfrecord.idx"]
    assert not layout.bad(0).exists()


def test_retired_shard_stays_while_it_is_leased(layout):
    make(layout, 0, 3)
    publish.mark_retired(layout, [(0, 0), (3, 0)])
    found = start(layout, leased={(0, 0)})
    assert statuses(found) == {(0, 0): "old"}
    assert found.dropped == ((3, 0),)
    assert found.heads[0] == (2, cursor(6)), "the newest shard says where its stream was"
    remove_leftovers(layout, found, State())
    assert statuses(start(layout, leased={(0, 0)})) == {(0, 0): "old"}
    found = start(layout)
    remove_leftovers(layout, found, State())
    assert tree(layout) == []


def test_state_knows_streams_without_shards(layout):
    make(layout, 1)
    state = State(((4, cursor(12)), (0, Cursor()), (2, Cursor())))
    assert start(layout, state=state).heads == ((4, cursor(12)), (1, cursor(4)), (2, Cursor()))


def test_newer_shard_overrides_the_state(layout):
    make(layout, 6)
    state = State(((2, cursor(6)), (0, Cursor()), (0, Cursor())))
    assert start(layout, state=state).heads[0] == (3, cursor(9))


def test_number_of_a_lease_is_never_used_again(layout):
    make(layout, 0)
    assert start(layout, leased={(6, 0)}).heads[0] == (3, cursor(3))


def test_mark_without_a_file_is_a_leftover_and_uses_its_number(layout):
    make(layout, 0)
    publish.mark_retired(layout, [(9, 0)])
    found = start(layout)
    assert found.heads[0] == (4, cursor(3))
    remove_leftovers(layout, found, State())
    assert not layout.old(9).exists()


def test_unknown_files_are_never_touched(layout):
    make(layout, 0)
    (layout.shards / "notes.txt").write_bytes(b"mine")
    (layout.shards / "0000000003.tfrecord").mkdir()
    (layout.shards / "0000000006.tfrecord").symlink_to("/nowhere")
    found = start(layout)
    remove_leftovers(layout, found, State())
    assert statuses(found) == {(0, 0): "live"}
    assert len(tree(layout)) == 5
    assert found.foreign >= (layout.shards / "notes.txt").stat().st_blocks * 512 > 0


def test_holders_of_keys_are_found(layout):
    write(layout, 0, units=[(1, "a"), (2, "b")])
    write(layout, 3, units=[(3, "\udcff")])
    for number in (0, 3):
        publish.publish(layout, number)
    make(layout, 6)
    make(layout, 9)
    layout.sidecar(9).write_bytes(b"damaged")
    make(layout, 12)
    layout.sidecar(12).unlink()
    assert find_holders(layout, dict.fromkeys("b", frozenset())) == [(0, 0), (9, 0), (12, 0)]
    assert find_holders(layout, dict.fromkeys("\udcffa", frozenset())) == [
        (0, 0),
        (3, 0),
        (9, 0),
        (12, 0),
    ]


def test_mark_on_a_shard_with_a_rotten_unit_table_loses_the_shard(layout):
    make(layout, 0, 3)
    publish.mark_bad(layout, 0, 0)
    sidecar = bytearray(layout.sidecar(0).read_bytes())
    at = sidecar.index(b"key-0-1")
    sidecar[at] ^= 4
    layout.sidecar(0).write_bytes(sidecar)
    assert statuses(start(layout, excluded={"key"})) == {
        (0, 0): "lost",
        (3, 0): "live",
    }


def test_cursor_of_a_stream_outlives_its_last_shard(layout):
    make(layout, 0, 3)
    publish.mark_retired(layout, [(0, 0), (3, 0)])
    state, _ = State().with_skips(Skips("gone", 1, 0, ("k",)))
    remove_leftovers(layout, start(layout), state)
    assert tree(layout) == []
    found = read_state(layout.state)
    assert found.skipped == state.skipped
    assert start(layout, state=found).heads[0] == (2, cursor(6))
