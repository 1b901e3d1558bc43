"""Commands about files: their results, and the files on disk after a success or a refusal."""

from __future__ import annotations

import os

import pytest

from cachecd.daemon.disk_work import lease_of, manifest_of
from cachecd.disk.publish import publish
from cachecd.model import Lane
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd_client.errors import ProtocolVersionError
from cachecd_client.protocol import decode_manifest, encode_manifest
from tests.daemon.directories import NAME, Directory, lease, stream
from tests.disk.shards import cursor, make, tree, write


@pytest.fixture
def disk(tmp_path):
    return Directory(tmp_path)


def test_sealed_shard_with_an_excluded_record_is_refused_until_discarded(disk):
    write(disk.generation, 3)
    disk.exclude("e1", "other", "key-3-1")
    assert disk.work.write(do.PublishShard(stream(0), 3)) == [ev.PublishRefused(stream(0), 3)]
    assert tree(disk.generation) == ["0000000003.new", "0000000003.new.idx"]
    disk.work.discard(stream(0), [3])
    assert tree(disk.generation) == []


def test_sealed_shard_is_refused_only_if_it_has_the_excluded_sample(disk):
    write(disk.generation, 3)
    write(disk.generation, 6)
    disk.exclude("e1", "key-3-1", samples=("3",))
    disk.exclude("e2", "key-6-1", samples=("0", "2"))
    for _ in range(2):  # also after a restart
        refused = disk.work.write(do.PublishShard(stream(0), 6))
        assert refused == [ev.PublishRefused(stream(0), 6)]
        disk.start()
    [published] = disk.work.write(do.PublishShard(stream(0), 3))
    assert isinstance(published, ev.Published)


def test_exclusion_is_in_force_after_a_restart(disk):
    disk.exclude("e1", "key-3-1")
    disk.start()
    write(disk.generation, 3)
    assert disk.work.write(do.PublishShard(stream(0), 3)) == [ev.PublishRefused(stream(0), 3)]


def test_existing_file_is_not_overwritten_by_a_publication(disk):
    write(disk.generation, 3)
    disk.generation.shard(3).write_bytes(b"mine")
    [refused] = disk.work.write(do.PublishShard(stream(0), 3))
    assert isinstance(refused, ev.DiskRefused)
    disk.work.discard(stream(0), [3])
    assert disk.generation.shard(3).read_bytes() == b"mine"


def test_cursor_before_a_shard_is_read(disk):
    make(disk.generation, 6, version=200)
    assert disk.work.write(do.ReadCursor(NAME, 6, 200)) == [ev.CursorRead(NAME, 6, cursor(6))]
    assert disk.work.write(do.ReadCursor(NAME, 9, 0)) == [ev.ShardLost(NAME, 9, 0)]


@pytest.mark.parametrize(
    "command", [do.VerifyShard(NAME, 3, 0), do.RemakeShard(NAME, 3, 0, local=True, drop=False)]
)
@pytest.mark.parametrize("damage", ["rotten", "missing"])
def test_shard_whose_sidecar_is_damaged_is_lost(disk, command, damage):
    make(disk.generation, 3)
    sidecar = disk.generation.sidecar(3)
    rotten = sidecar.read_bytes().replace(b"key-3-1", b"key-3-2")
    sidecar.unlink()
    if damage == "rotten":
        sidecar.write_bytes(rotten)
    first, *others = disk.work.search(command)
    assert first == ev.ShardLost(NAME, 3, 0)
    assert [type(event) for event in others] == (
        [ev.RemakeFailed] if isinstance(command, do.RemakeShard) else []
    )


def test_generation_with_an_unknown_file_is_not_removed(disk):
    (disk.generation.shards / "notes").write_text("mine")
    command = do.RemoveGeneration(NAME)
    assert disk.work.write(command) == [ev.CommandDone(command)], "a foreign file stops nothing"
    assert disk.generation.root.exists()
    (disk.generation.shards / "notes").unlink()
    assert disk.work.write(command) == [ev.CommandDone(command)]
    assert not disk.generation.root.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1],
        lambda text: text.replace(b'"version":2', b'"version":1'),
        lambda text: text.replace(b"[[0,0,3],", b"[[0,-1,3],"),
    ],
)
def test_damaged_manifest_is_refused(change):
    text = encode_manifest(manifest_of(lease(), None))
    assert lease_of(decode_manifest(text)) == lease()
    assert change(text) != text
    with pytest.raises(
        (ValueError, ProtocolVersionError), match=r"manifest|interval|Expecting|version"
    ):
        decode_manifest(change(text))


# --- searches


def verified(disk, number):
    [event] = disk.work.search(do.VerifyShard(NAME, number, 0))
    return event.sound


def test_verify_finds_damage(disk):
    make(disk.generation, 0, 3, 9, 12)
    write(disk.generation, 15, units=[])
    disk.work.write(do.PublishShard(stream(0), 15))
    data = bytearray(disk.generation.shard(3).read_bytes())
    data[40] ^= 1
    disk.generation.shard(3).write_bytes(data)
    disk.generation.shard(9).unlink()
    os.truncate(disk.generation.shard(12), disk.generation.shard(12).stat().st_size // 6 * 5)
    assert [verified(disk, number) for number in (0, 3, 9, 12, 15)] == [
        *(True, False, False, False, True)
    ]


def test_holders_are_found_in_every_generation_of_the_dataset(disk):
    make(disk.generation, 0, 3)
    older = disk.layout.generation("train", "fedcba9876543210")
    other = disk.layout.generation("val", "fedcba9876543210")
    for layout in (older, other):
        layout.shards.mkdir(parents=True)
        make(layout, 3)
    disk.exclude("e1", "key-3-0")
    [found] = disk.work.search(do.FindHolders("e1"))
    assert [(name.name, number, version) for name, number, version in found.holders] == [
        (NAME.name, 3, 0),
        ("fedcba9876543210", 3, 0),
    ]
    disk.start()  # the exclusion is not finished: a start searches again
    assert disk.work.search(do.FindHolders("e1")) == [found]
    disk.work.write(do.FinishExclusion("e1"))
    disk.start()
    assert disk.work.excluded.unfinished == ()


def test_open_exclusion_of_samples_continues_after_a_start(disk):
    make(disk.generation, 0, 3, 6)
    data = bytearray(disk.generation.shard(6).read_bytes())
    data[40] ^= 1
    disk.generation.shard(6).write_bytes(data)
    disk.exclude("e1", "key-3-0", samples=("1",))
    disk.exclude("e2", "key-6-0", samples=("9",))
    for _ in range(2):
        [found] = disk.work.search(do.FindHolders("e1"))
        assert found.holders == ((NAME, 3, 0),)
        [found] = disk.work.search(do.FindHolders("e2"))
        assert found.holders == ((NAME, 6, 0),), "its damaged record may be the sample"
        disk.start()  # the daemon was killed before the second line
    [remade] = disk.work.search(do.RemakeShard(NAME, 3, 0, local=True, drop=False))
    assert remade.facts.records == 5


def test_search_finds_the_samples_of_an_object_and_whether_they_are_all(disk):
    make(disk.generation, 3)
    write(disk.generation, 0, lanes=(Lane(0, 0, 1, 5, 100, 3, 10),))
    publish(disk.generation, 0)
    names = {"0", "1", "2"}
    assert disk.work.cached_samples(["train"], "key-3-0", False) == (names, True)
    assert disk.work.cached_samples(["train"], "key-0-1", False) == (names, False)
    assert disk.work.cached_samples(["train"], "key-0-1", True) == (names, True)
    for datasets, key in ((["val"], "key-3-0"), (["train"], "key-9-0")):
        assert disk.work.cached_samples(datasets, key, True) == (set(), False)
    disk.generation.shard(3).write_bytes(b"damaged")
    assert disk.work.cached_samples(["train"], "key-3-0", False)[1] is False


def test_damaged_shard_cannot_be_copied(disk):
    make(disk.generation, 3)
    data = bytearray(disk.generation.shard(3).read_bytes())
    data[-20] ^= 1
    disk.generation.shard(3).write_bytes(data)
    before = tree(disk.generation)
    [failed] = disk.work.search(do.RemakeShard(NAME, 3, 0, local=True, drop=False))
    assert isinstance(failed, ev.RemakeFailed)
    assert tree(disk.generation) == before
