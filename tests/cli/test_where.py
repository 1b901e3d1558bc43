"""`cachecd where` and `cachecd erased`: what the sidecars say of a record, and of a key."""

from __future__ import annotations

import json

import pytest

from cachecd.cli.where import find_origin
from cachecd.disk import publish
from cachecd.disk.identity import Generation, write_generation
from cachecd.disk.layout import Layout
from cachecd_client.errors import CallerError
from tests.disk.shards import directory, make, write

NAME = "0123456789abcdef"


@pytest.fixture
def shards(tmp_path):
    layout = directory(tmp_path)
    words = {"url": "s3://bucket/train/", "format": "files"}
    write_generation(layout.identity, Generation(words, 0.0, 0, 1 << 20))
    make(layout, 0, 1)
    return layout


def test_a_record_is_named_by_its_object(cachecd, shards, tmp_path):
    done = cachecd("where", "train", f"{NAME}/1:3", "--dir", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "s3://bucket/train/key-1-1  from byte 0 on, record 1 of it\n"
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
    write_generation(layout.identity, Generation(words, 0.0, 0, 1 << 20))
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
    write_generation(newer.identity, Generation({"url": "s3://other/"}, 1.0, 0, 1 << 20))
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
    done = cachecd("erased", "key-1-0", "--dir", tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"{shards.shard(1)}: holds a record of the object",
        "1 shards may hold records of the object",
    ]
    publish.copy_without(shards, 1, 0, [b"key-1-0"])
    publish.publish(shards, 1, 1)
    assert cachecd("erased", "key-1-0", "--dir", tmp_path).returncode == 1, "version 0 is there"
    publish.unlink(shards, [(1, 0)])
    done = cachecd("erased", "key-1-0", "--dir", tmp_path, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"key": "key-1-0", "copies": []}
