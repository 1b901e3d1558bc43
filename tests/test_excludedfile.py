"""The file of exclusions beside the catalog: what it outlives, and what it says when it is damaged."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachecd.catalog import Catalog, SavedPlan
from cachecd.errors import DiskError
from cachecd.excludedfile import ExcludedFile
from cachecd_client.errors import CallerError

A, B, C = ("train", "a", 0), ("train", "b\ud800\n", 7), ("eval", "a", 0)


def names(path: Path) -> list[tuple[str, int]]:
    return ExcludedFile(path)("train")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "excluded.jsonl"


def test_what_is_added_is_there_and_what_a_person_removes_is_not(path):
    kept = ExcludedFile(path)
    kept.add([A, B])
    kept.add([A, C])
    assert kept("train") == names(path) == [A[1:], B[1:]]
    lines = path.read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["dataset"] for line in lines] == ["train", "train", "eval"]
    path.write_bytes(lines[0] + lines[2])
    assert names(path) == [A[1:]]
    assert ExcludedFile(path)("eval") == [C[1:]]


@pytest.mark.parametrize("cut", range(1, 50, 7))
def test_a_line_that_was_cut_off_costs_none_of_the_others_and_is_written_again(path, cut):
    ExcludedFile(path).add([A, B])
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    kept = ExcludedFile(path)
    assert A[1:] in kept("train")
    kept.add([B, C])
    assert names(path) == [A[1:], B[1:]]
    assert ExcludedFile(path)("eval") == [C[1:]]


NOTHING = [
    b"nonsense",
    b"[]",
    b"{}",
    b'{"dataset": 1, "key": "", "begin": 0}',
    b"\xff",
    b"[" * 9999,
]


@pytest.mark.parametrize("line", NOTHING)
def test_a_line_that_is_no_exclusion_is_refused_with_its_place(path, line):
    ExcludedFile(path).add([A])
    path.write_bytes(line + b"\n" + path.read_bytes())
    with pytest.raises(CallerError, match=rf"{path}:1: .* is no exclusion: mend the line"):
        ExcludedFile(path)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_what_the_disk_refuses_is_no_success_and_comes_with_the_next_try(path, monkeypatch, call):
    kept = ExcludedFile(path)
    kept.add([C])

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(DiskError, match="cannot write the exclusions"):
        kept.add([A])
    monkeypatch.undo()
    kept.add([A])
    assert names(path) == [A[1:]]
    assert ExcludedFile(path)("eval") == [C[1:]]


def test_a_file_that_cannot_be_read_is_no_empty_one(path):
    path.mkdir()
    with pytest.raises(DiskError, match="cannot read the exclusions"):
        ExcludedFile(path)


ROWS = st.tuples(
    st.sampled_from(["train", "eval"]),
    st.text(st.characters(exclude_categories=()), max_size=4),
    st.integers(0, 2**63 - 1) | st.just(0),
)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(st.lists(ROWS, max_size=3), max_size=6))
def test_any_names_are_kept_as_a_set_keeps_them(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("excluded") / "excluded.jsonl"
    kept, model = ExcludedFile(path), set()
    for rows in steps:
        kept.add(rows)
        model |= set(rows)
        kept = ExcludedFile(path)
        for dataset in ("train", "eval"):
            assert set(kept(dataset)) == {row[1:] for row in model if row[0] == dataset}


@pytest.mark.parametrize("loss", ["deleted", "damaged"])
def test_what_is_excluded_outlives_a_catalog_that_is_deleted_or_damaged(tmp_path, loss):
    path, plan = tmp_path / "catalog.sqlite", SavedPlan("train", {}, ())
    catalog = Catalog(path)
    catalog.save_progress(plan, excluded=[A[1:], B[1:]])
    catalog.close()
    if loss == "deleted":
        path.unlink()
    else:
        path.write_bytes(b"nonsense" * 1000)
    catalog = Catalog(path)
    assert catalog.rebuilt
    assert catalog.excluded("train") == [A[1:], B[1:]]
    catalog.close()
