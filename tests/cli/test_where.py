"""`cachecd where` and `cachecd erased`: what the sidecars say of a record, and of a key."""

from __future__ import annotations

import json

import pytest

from cachecd.cli.where import find_origin
from cachecd.disk import publish
from cachecd.disk.generation_file import GenerationFile, write_generation
from cachecd.disk.layout import Layout
from cachecd_client._core import ShardWriter, encode_example
from cachecd_client.errors import CallerError
from tests.disk.shards import directory, make, payload, write

NAME = "0123456789abcdef"


@pytest.fixture
def shards(tmp_path):
    layout = directory(tmp_path)
    words = {"url": "s3://bucket/train/", "format": "files"}
    write_generation(layout.identity, GenerationFile(words, 0.0, 0, 1 << 20))
    make(layout, 0, 1)
    return layout


def test_a_record_is_named_by_its_object(cachecd, shards, tmp_path):
    done = cachecd("where", "train", f"{NAME}/1:3", "--dir", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "s3://bucket/train/key-1-1  unit from byte 0, record 1 of the unit\n"
    done = cachecd("where", "train", f"{NAME}/1:3", "--dir", tmp_path, "--json")
    assert json.loads(done.stdout) == {
        "url": "s3://bucket/train/key-1-1",
        "source": "s3://bucket/train/",
        "key": "key-1-1",
        "begin": 0,
        "etag": "etag",
        "ordinal": 1,
    }


@pytest.mark.parametrize(
    ("words", "key", "url"),
    [
        ({"url": "https://"}, "https://host/a/b.jpg", "https://host/a/b.jpg"),
        ({"url": "s3://b", "join": {"a": "i/*.png", "b": "m/*"}}, "1", "s3://b/i/1.png"),
        ({"url": "s3://b", "join": [["b", "m/*"], ["a", "i/*.png"]]}, "1", "s3://b/m/1"),
    ],
)
def test_an_object_is_named_by_its_whole_url(tmp_path, words, key, url):
    layout = directory(tmp_path)
    write_generation(layout.identity, GenerationFile(words, 0.0, 0, 1 << 20))
    write(layout, 0, units=[(0, key)])
    publish.publish(layout, 0)
    assert find_origin(layout, 0, None, 0).url == url


@pytest.mark.parametrize("place", [(7, None, 0), (1, 1, 0), (1, None, 6)])
def test_what_is_not_there_is_a_callers_error(shards, place):
    with pytest.raises(CallerError, match="there is no"):
        find_origin(shards, *place)


def test_the_newest_generation_is_meant_unless_one_is_named(cachecd, shards, tmp_path):
    newer = Layout(tmp_path).generation("train", "f" * 16)
    newer.shards.mkdir(parents=True)
    write_generation(newer.identity, GenerationFile({"url": "s3://other/"}, 1.0, 0, 1 << 20))
    done = cachecd("where", "train", "1:3", "--dir", tmp_path)
    assert done.returncode == 2
    assert f"{'f' * 16}/shards/0000000001.tfrecord.idx: there is no such shard" in done.stderr
    make(newer, 1)
    done = cachecd("where", "train", "1:3", "--dir", tmp_path)
    assert done.stdout.startswith("s3://other/key-1-1")


@pytest.mark.parametrize("place", [("train", "../1:1"), ("../train", "1:1"), ("train", "x/1:1")])
def test_a_place_in_another_form_is_exit_2(cachecd, tmp_path, place):
    done = cachecd("where", *place, "--dir", tmp_path)
    assert done.returncode == 2
    assert "expected a dataset and [GENERATION/]NUMBER:RECORD" in done.stderr


def test_every_copy_of_an_object_is_found(cachecd, shards, tmp_path):
    done = cachecd("erased", "train", "key-1-0", "--dir", tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"{shards.shard(1)}: holds a record",
        "1 shards may hold such records",
    ]
    done = cachecd("erased", "key-1-0", "--dir", tmp_path)
    assert done.stdout.splitlines()[0] == f"{shards.shard(1)}: holds a record in train"
    publish.copy_without(shards, 1, 0, {b"key-1-0": frozenset()})
    publish.publish(shards, 1, 1)
    done = cachecd("erased", "train", "key-1-0", "--dir", tmp_path)
    assert done.returncode == 1, "version 0 is there"
    publish.unlink(shards, [(1, 0)])
    done = cachecd("erased", "train", "key-1-0", "--dir", tmp_path, "--json")
    assert done.returncode == 0
    asked = {"dataset": "train", "keys": ["key-1-0"], "samples": []}
    assert json.loads(done.stdout) == {**asked, "copies": [], "unfinished": 0}


def test_every_copy_of_a_sample_is_found_by_its_bytes(cachecd, shards, tmp_path):
    """In versions, other generations and datasets, damaged shards, and those that are being written."""

    def erased(*samples: str) -> list[str]:
        options = [option for sample in samples for option in ("--sample", sample)]
        done = cachecd("erased", "train", "key-1-0", *options, "--dir", tmp_path)
        assert done.returncode == (1 if "may hold such records" in done.stdout else 0)
        return done.stdout.splitlines()

    assert erased("3", "4") == ["no copy is left under these names"]
    assert erased("3", "2") == [
        f"{shards.shard(1)}: holds a record",
        "1 shards may hold such records",
    ]
    publish.copy_without(shards, 1, 0, {b"key-1-0": frozenset({"2"})})
    publish.publish(shards, 1, 1)
    publish.mark_retired(shards, [(1, 1)])
    assert erased("2")[:-1] == [f"{shards.shard(1)}: holds a record"]
    publish.unlink(shards, [(1, 0)])
    assert erased("2") == ["no copy is left under these names"]

    older, other = (Layout(tmp_path).generation(name, "f" * 16) for name in ("train", "val"))
    for layout in (older, other):
        layout.shards.mkdir(parents=True)
        make(layout, 1)
    assert erased("2")[:-1] == [
        f"{older.shard(1)}: holds a record",
        f"{other.shard(1)}: holds a record in val",
    ]
    publish.unlink(other, [(1, 0)])
    content = bytearray(older.shard(1).read_bytes())
    content[40] ^= 1
    older.shard(1).write_bytes(content)
    assert "may hold a record: " in erased("3")[0]
    publish.unlink(older, [(1, 0)])

    writer = ShardWriter(str(shards.temporary(9)), 1 << 20)
    for record in range(3):
        writer.append(payload(9, record), 9, record)
    assert erased("3") == [
        "no copy is left under these names in finished shards; 1 shards are being written, and the daemon "
        "publishes no shard with an excluded record"
    ]
    writer.finish("{}")
    shards.temporary_sidecar(9).unlink()
    assert erased("2")[:-1] == [
        f"{shards.temporary(9)}: is being written, and has a record with this name"
    ]
    shards.temporary(9).unlink()
    write(shards, 9, units=[(1, "key-1-0")])
    assert erased("2")[:-1] == [f"{shards.temporary(9)}: holds a record"]
    shards.temporary(9).unlink()
    shards.temporary_sidecar(9).unlink()
    write_nameless(shards, 9, "key-1-0")
    assert erased("2")[:-1] == [f"{shards.shard(9)}: holds a record"], "a record without a name"


def write_nameless(layout, number, key):
    writer = ShardWriter(str(layout.temporary(number)), 1 << 20)
    writer.describe(1, key.encode(), 0, b"")
    writer.append(encode_example({"text": "x"}), 1, 0)
    writer.finish("{}")
    publish.publish(layout, number)


def test_samples_of_several_objects_are_exit_2(cachecd, tmp_path):
    for command in ("erased", "exclude"):
        done = cachecd(command, "train", "a", "b", "--sample", "1")
        assert done.returncode == 2
        assert "--sample works with one object, but 2 objects" in done.stderr
