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

SOURCE = "file:///source"
A, B, C = ("train", SOURCE, "a", 0), ("train", SOURCE, "b\ud800\n", 7), ("eval", "", "a", 0)


def names(path: Path) -> list[tuple[str, str, int]]:
    return ExcludedFile(path)("train")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "excluded.jsonl"


def test_what_is_added_is_there_and_what_is_removed_leaves_no_line(path):
    kept = ExcludedFile(path)
    kept.add([A, B])
    kept.add([A, C])
    assert kept("train") == names(path) == [A[1:], B[1:]]
    assert len(path.read_bytes().splitlines()) == 3
    kept.remove([B])
    assert names(path) == [A[1:]]
    assert len(path.read_bytes().splitlines()) == 2
    assert ExcludedFile(path)("eval") == [C[1:]]
    assert json.loads(path.read_bytes().splitlines()[0])["dataset"] == "eval"


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_was_cut_off_costs_none_of_the_others_and_is_written_again(path, cut):
    ExcludedFile(path).add([A, B])
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    kept = ExcludedFile(path)
    assert A[1:] in kept("train")
    assert not kept.damaged
    kept.add([B, C])
    assert names(path) == [A[1:], B[1:]]
    assert ExcludedFile(path)("eval") == [C[1:]]


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[]",
        b"{}",
        b'{"dataset": 1, "source": "", "key": "", "begin": 0}',
        b"\xff",
        b"[" * 9999,
    ],
)
def test_a_line_that_is_none_is_named_and_the_others_count(path, line):
    ExcludedFile(path).add([A])
    path.write_bytes(line + b"\n" + path.read_bytes())
    kept = ExcludedFile(path)
    assert kept("train") == [A[1:]]
    assert [said.partition(": ")[0] for said in kept.damaged] == [f"{path}, line 1"]


def test_on_a_disk_without_room_for_a_second_file_an_exclusion_is_lifted_by_a_line(
    path, monkeypatch
):
    kept = ExcludedFile(path)
    kept.add([A, B])
    path.with_name(path.name + ".new").mkdir()  # whatever refuses a second file
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    kept.remove([A])
    assert kept("train") == names(path) == [B[1:]]
    kept.add([A])
    assert names(path) == [A[1:], B[1:]]


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_what_the_disk_refuses_is_no_success_and_comes_with_the_next_try(path, monkeypatch, call):
    kept = ExcludedFile(path)
    kept.add([C])

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(DiskError, match="cannot write the exclusions"):
        kept.add([A])
    if call == "fsync":
        with pytest.raises(DiskError):
            kept.remove([C])
    monkeypatch.undo()
    kept.add([A])
    kept.remove([C])
    assert names(path) == [A[1:]]
    assert ExcludedFile(path)("eval") == []


def test_a_file_that_cannot_be_read_is_no_empty_one(path):
    path.mkdir()
    with pytest.raises(DiskError, match="cannot read the exclusions"):
        ExcludedFile(path)


ROWS = st.tuples(
    st.sampled_from(["train", "eval"]),
    st.just(SOURCE),
    st.text(st.characters(exclude_categories=()), max_size=4),
    st.integers(0, 2**63 - 1) | st.just(0),
)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(st.tuples(st.booleans(), st.lists(ROWS, max_size=3)), max_size=6))
def test_any_names_are_kept_as_a_set_keeps_them(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("excluded") / "excluded.jsonl"
    kept, model = ExcludedFile(path), set()
    for adds, rows in steps:
        (kept.add if adds else kept.remove)(rows)
        model = model | set(rows) if adds else model - set(rows)
        kept = ExcludedFile(path)
        assert not kept.damaged
        for dataset in ("train", "eval"):
            assert set(kept(dataset)) == {row[1:] for row in model if row[0] == dataset}


@pytest.mark.parametrize("loss", ["deleted", "damaged"])
def test_what_is_excluded_outlives_a_catalog_that_is_deleted_or_damaged(tmp_path, loss):
    path, plan = tmp_path / "catalog.sqlite", SavedPlan("train", {}, ())
    catalog = Catalog(path)
    catalog.save_progress(plan, excluded=[A[1:], B[1:]])
    catalog.save_progress(plan, included=[A[1:]])
    catalog.close()
    if loss == "deleted":
        path.unlink()
    else:
        path.write_bytes(b"nonsense" * 1000)
    catalog = Catalog(path)
    assert catalog.rebuilt
    assert catalog.excluded("train") == [B[1:]]
    catalog.close()


def test_what_only_the_catalog_has_is_written_beside_it_at_a_start(tmp_path):
    path = tmp_path / "catalog.sqlite"
    catalog = Catalog(path)
    catalog.save_progress(SavedPlan("train", {}, ()), excluded=[A[1:]])
    catalog.close()
    beside = tmp_path / "excluded.jsonl"
    beside.unlink()
    catalog = Catalog(path)
    assert catalog.excluded("train") == names(beside) == [A[1:]]
    catalog.close()
