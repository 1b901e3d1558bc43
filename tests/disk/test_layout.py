"""Names of files, both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.disk.layout import GenerationLayout, Layout, ShardFile, parse

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
