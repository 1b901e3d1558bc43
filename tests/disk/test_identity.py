"""The names of directories: golden values, for caches rest on them; and generation.json."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cachecd.disk.identity import Generation, Identity, read_generation, write_generation
from cachecd.errors import DamagedError
from cachecd.model import Shape

PLAIN = Identity(url="s3://bucket/train/", format="files")
FULL = Identity(
    url="s3://bucket/train/",
    endpoint="https://minio.example:9000",
    format="files",
    match=["*.jpg"],
    skip=["bad/*"],
    join={"image": "i/*.png", "mask": "m/*.png"},
    manifest="s3://bucket/list.csv",
    label={"pattern": "^([^/]+)/", "classes": ["a", "b"]},
    transform=(["resize", {"size": 256}], ["my.module:function"]),
    split={"eval": 0.01},
    held_out=True,
    partition={"index": 0, "count": 4},
    generation=3,
)


def test_names_are_the_same_for_ever():
    """A change here makes every cache fetch everything anew: add fields, and keep these."""
    assert PLAIN.name() == "60e33dd25cc8b744"
    assert FULL.name() == "309bbb66c1f61c15"
    assert replace(PLAIN, id="imagenet").name() == "cfa6284e8aafeb7a"
    assert replace(PLAIN, url="s3://bucket/\udcff/").name() == "949550796356c1f8"


def test_defaults_do_not_enter_the_name():
    assert Identity(url=PLAIN.url, format="files", generation=1, transform=()).words() == {
        "url": "s3://bucket/train/",
        "format": "files",
    }


@pytest.mark.parametrize("field", sorted(FULL.words().keys() - {"format", "url"}))
def test_every_field_decides(field):
    default = getattr(Identity(), field)
    assert replace(FULL, **{field: default}).name() != FULL.name()


def test_source_id_stands_for_url_and_endpoint():
    moved = replace(FULL, url="gs://other/", endpoint=None)
    assert moved.name() != FULL.name()
    assert replace(moved, id="x").name() == replace(FULL, id="x").name()
    assert replace(FULL, id="x").name() != replace(FULL, id="y").name()
    assert replace(FULL, id="x").words()["url"] == FULL.url, "generation.json says it in words"


def test_copy_of_a_damaged_listing_has_the_name_and_a_number():
    assert PLAIN.name(2) == f"{PLAIN.name()}-2"


def test_generation_is_read_back(tmp_path):
    path = tmp_path / "generation.json"
    assert read_generation(path) is None
    for shape in (None, Shape(8, 32, 16, 1 << 26, 7)):
        for schema in (None, "schema"):
            made = Generation(FULL.words(), 12.5, 7, 1 << 26, shape, schema)
            write_generation(path, made)
            assert read_generation(path) == made


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"version": 1}', b"\xff\xfe", None])
def test_damaged_generation_is_named(tmp_path, damage):
    path = tmp_path / "generation.json"
    write_generation(path, Generation(PLAIN.words(), 0, 7, 1 << 26, Shape(8, 32, 16, 1 << 26, 7)))
    path.write_bytes(path.read_bytes().replace(b'"S": 8', b'"S": 0') if damage is None else damage)
    with pytest.raises(DamagedError, match=r"generation\.json is damaged"):
        read_generation(path)
