"""Names of files, both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.config.identity import directory_name
from cachecd.disk.layout import (
    MOST_NUMBER,
    MOST_VERSION,
    GenerationLayout,
    Layout,
    ShardFile,
    is_known,
    parse,
    shard_file,
)

DATASET = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"  # as in the configuration
LAYOUT = GenerationLayout(Path("/c/datasets/train/0123456789abcdef"))


@given(st.integers(0, MOST_NUMBER), st.integers(0, MOST_VERSION))
def test_every_name_that_is_written_is_read(number, version):
    assert parse(LAYOUT.shard(number, version).name) == ShardFile(number, version, ".tfrecord")
    assert parse(LAYOUT.sidecar(number, version).name) == (number, version, ".tfrecord.idx")
    assert parse(LAYOUT.temporary(number, version).name) == (number, version, ".new")
    assert parse(LAYOUT.temporary_sidecar(number, version).name) == (number, version, ".new.idx")
    assert parse(LAYOUT.bad(number, version).name) == (number, version, ".bad")
    assert parse(LAYOUT.old(number).name) == (number, 0, ".old")


@given(st.from_regex(DATASET, fullmatch=True), st.integers(1))
def test_every_directory_and_small_file_that_is_written_is_known(dataset, copy):
    layout, generation = Layout(Path("/c")), directory_name({"url": "file:///src/"}, copy)
    of_split = layout.generation(f"{dataset}-eval", generation)
    assert shard_file(str(of_split.shard(1).relative_to("/c"))) == (1, 0, ".tfrecord")
    files = [of_split.identity, of_split.listing, of_split.state, of_split.snapshot]
    files += [
        layout.classes(dataset, "0f"),
        layout.rotation(dataset),
        layout.manifest(f"{dataset}.1.a.b"),
    ]
    files += [layout.lock, layout.egress, layout.excluded, layout.history]
    assert all(is_known(str(path.relative_to("/c"))) for path in files)


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
def test_other_names_are_unknown(name):
    assert parse(name) is None


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
