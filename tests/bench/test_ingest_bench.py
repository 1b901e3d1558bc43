"""The benchmarks of ingest run, and measure what they say. In the long form alone, CACHECD_LONG=1."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.ingest import BARS, FIGURES
from tests.bench.shortform import run


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """One in which a socket's path stays short enough."""
    with tempfile.TemporaryDirectory(prefix="cachecd-") as folder:
        yield Path(folder)


@pytest.mark.long
def test_it_measures_contenders_against_the_same_objects_and_leaves_nothing_behind(
    tmp_path, short_folder
):
    folder = short_folder
    arguments = ["--folder", str(folder), "--repeats", "1", "--only", "obstore", "ours"]
    arguments += ["files-4", "files-8", "files-16"]
    arguments += ["--large", "2", "--small", "0", "--tiny", "0", "--many", "100"]
    found, _ = run("ingest", *arguments, figures=tmp_path / "figures.json")
    assert found["bars"].keys() == {bar for bar in BARS if "64 MiB" in bar}
    assert found["cases"]["tfrecord"].keys() == {
        "obstore",
        "files-4",
        "files-8",
        "files-16",
        "ours",
    }
    for case in found["cases"].values():
        assert case["ours"].keys() == FIGURES.keys()
        assert all(value[0] > 0 for values in case.values() for value in values.values())
    assert 0 < found["first_batch_s"][0] < 100
    assert list(folder.iterdir()) == []


@pytest.mark.long
def test_it_counts_what_is_fetched_of_a_source_at_the_store(tmp_path, short_folder):
    arguments = ["--folder", str(short_folder), "--mb", "20"]
    found, printed = run("fetched", *arguments, figures=tmp_path / "figures.json")
    assert all(1 < case["ratio"] <= 1.01 for case in found.values())
    assert printed.count("met") == len(found) == 3
