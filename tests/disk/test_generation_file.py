"""The names of directories: golden values, because existing caches depend on them; and generation.json."""

from __future__ import annotations

import pytest

from cachecd.config.identity import directory_name
from cachecd.disk.generation_file import GenerationFile, read_generation, write_generation
from cachecd.errors import DamagedError
from cachecd.model import Shape

PLAIN = {"url": "s3://bucket/train/", "format": "files"}
FULL = {
    "url": "s3://bucket/train/",
    "endpoint": "https://minio.example:9000",
    "format": "files",
    "match": ["*.jpg"],
    "skip": ["bad/*"],
    "join": {"image": "i/*.png", "mask": "m/*.png"},
    "manifest": "s3://bucket/list.csv",
    "label": {"pattern": "^([^/]+)/", "classes": ["a", "b"]},
    "transform": [["resize", {"size": 256}], ["my.module:function"]],
    "split": {"eval": 0.01},
    "held_out": True,
    "partition": {"index": 0, "count": 4},
    "generation": 3,
}


def test_names_are_the_same_for_ever():
    """If these names change, every cache fetches everything again: add values, and keep these."""
    assert directory_name(PLAIN) == "60e33dd25cc8b744"
    assert directory_name(FULL) == "309bbb66c1f61c15"
    assert directory_name({**PLAIN, "id": "imagenet"}) == "cfa6284e8aafeb7a"
    assert directory_name({**PLAIN, "url": "s3://bucket/\udcff/"}) == "949550796356c1f8"


def test_source_id_replaces_url_and_endpoint():
    moved = {**FULL, "url": "gs://other/"}
    del moved["endpoint"]
    assert directory_name(moved) != directory_name(FULL)
    assert directory_name({**moved, "id": "x"}) == directory_name({**FULL, "id": "x"})
    assert directory_name({**FULL, "id": "x"}) != directory_name({**FULL, "id": "y"})


def test_copy_of_a_damaged_listing_has_the_name_and_a_number():
    assert directory_name(PLAIN, 2) == f"{directory_name(PLAIN)}-2"


def test_generation_is_read_back(tmp_path):
    path = tmp_path / "generation.json"
    assert read_generation(path) is None
    for shape in (None, Shape(8, 32, 16, 1 << 26, 7)):
        for schema in (None, "{}"):
            made = GenerationFile(FULL, 12.5, 7, 1 << 26, shape, schema)
            write_generation(path, made)
            assert read_generation(path) == made


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"version": 1}', b"\xff\xfe", None])
def test_damaged_generation_is_named(tmp_path, damage):
    path = tmp_path / "generation.json"
    write_generation(path, GenerationFile(PLAIN, 0, 7, 1 << 26, Shape(8, 32, 16, 1 << 26, 7)))
    path.write_bytes(path.read_bytes().replace(b'"S": 8', b'"S": 0') if damage is None else damage)
    with pytest.raises(DamagedError, match=r"generation\.json is damaged"):
        read_generation(path)
