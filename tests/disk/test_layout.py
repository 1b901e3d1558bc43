"""Names of files, both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.disk.layout import GenerationLayout, Layout, ShardFile, is_known, parse

LAYOUT = GenerationLayout(Path("/c/datasets/train/0123456789abcdef"))


@given(st.integers(0, 10**12), st.integers(0, 99))
def test_names_are_parsed_back(number, version):
    assert parse(LAYOUT.shard(number, version).name) == ShardFile(number, version, ".tfrecord")
    assert parse(LAYOUT.sidecar(number, version).name) == (number, version, ".tfrecord.idx")
    assert parse(LAYOUT.temporary(number, version).name) == (number, version, ".new")
    assert parse(LAYOUT.temporary_sidecar(number, version).name) == (number, version, ".new.idx")
    assert parse(LAYOUT.bad(number, version).name) == (number, version, ".bad")
    assert parse(LAYOUT.old(number).name) == (number, 0, ".old")


@pytest.mark.parametrize(
    "name",
    [
        "0000000001",
        "1.tfrecord",
        "0000000001.0.tfrecord",
        "0000000001.1.old",
        "0000000001.tfrecord.idx~",
        "٠٠٠٠٠٠٠٠٠١.tfrecord",
    ],
)
def test_other_names_are_not_ours(name):
    assert parse(name) is None


def test_tree_is_that_of_the_documentation():
    layout = Layout(Path("/c"))
    assert [
        str(p) for p in (layout.lock, layout.egress, layout.excluded, layout.manifest("l"))
    ] == [*("/c/lock", "/c/egress.json", "/c/excluded.jsonl", "/c/leases/l.json")]
    assert str(layout.rotation("train")) == "/c/datasets/train/rotation.json"
    assert str(layout.classes("train", "ab")) == "/c/datasets/train/classes-ab.json"
    generation = layout.generation("train", "0123456789abcdef")
    of_dataset = layout.rotation("train"), layout.classes("train", "ab")
    small = layout.lock, layout.egress, layout.excluded, layout.manifest("l"), *of_dataset
    small += generation.identity, generation.listing, generation.state, generation.snapshot
    assert all(is_known(str(path.relative_to("/c"))) for path in small), "`verify` knows its name"
    assert not is_known("datasets/train/notes.json")
    assert generation == LAYOUT
    assert str(generation.shard(42, 1)).endswith("/shards/0000000042.1.tfrecord")


def test_directories_of_generations_are_found(tmp_path):
    layout = Layout(tmp_path)
    assert list(layout.generations()) == []
    for name in ("0123456789abcdef", "0123456789abcdef-2", "fedcba9876543210", "notes", ".hidden"):
        (layout.dataset("train") / name).mkdir(parents=True)
    (layout.dataset("train") / "0000000000000000").touch()
    (layout.datasets / "other").touch()
    assert list(layout.generations()) == [
        ("train", "0123456789abcdef"),
        ("train", "0123456789abcdef-2"),
        ("train", "fedcba9876543210"),
    ]
