"""Every benchmark runs in its short form, and measures what it names."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench import ingest, state
from tests.bench.feeding import WAYS

ROOT = Path(__file__).parents[2]
IMAGES = ("jpg256", "masks", "png256", "pixels256", "job")


def run(benchmark: str, *arguments: str) -> tuple[dict[str, Any], str]:
    """The figures that `python -m tests.bench.BENCHMARK` wrote, and the text that it printed."""
    with tempfile.TemporaryDirectory() as made:
        figures = Path(made) / "figures.json"
        done = subprocess.run(
            [sys.executable, "-m", f"tests.bench.{benchmark}", *arguments, "--json", figures],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(figures.read_text()), done.stdout


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in which a socket's path stays short enough; a benchmark leaves nothing in it."""
    with tempfile.TemporaryDirectory(prefix="cachecd-") as made:
        yield Path(made)
        assert list(Path(made).iterdir()) == []


@pytest.mark.long
def test_our_image_readers_are_measured_and_put_into_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- images: begin -->\n<!-- images: end -->\n")
    place = ["--data", str(tmp_path / "data"), "--page", str(page)]
    found, printed = run("images", "--quick", *place, "--only", *(f"{c}/ours*" for c in IMAGES))
    assert found["absent"] == {}
    assert found["measured"].keys() == set(IMAGES)
    assert found["measured"]["jpg256"]["ours"]["images_s"][0] > 0
    assert found["measured"]["job"]["ours-job"]["nothing_s"][0] > 0
    assert printed.partition("**")[2] in page.read_text()


@pytest.mark.long
def test_ingest_is_measured_against_the_same_objects(folder):
    objects = ["--large", "2", "--small", "0", "--tiny", "0"]
    found, _ = run("ingest", "--folder", str(folder), "--repeats", "1", *objects)
    case = found["cases"]["tfrecord"]
    assert case.keys() == set(ingest.CONTENDERS["tfrecord"])
    assert case["ours"].keys() == ingest.FIGURES.keys()
    assert all(value[0] > 0 for values in case.values() for value in values.values())


@pytest.mark.long
def test_a_source_is_fetched_once(folder):
    found, _ = run("fetched", "--folder", str(folder), "--mb", "20")
    assert len(found) == 3
    assert all(1 < case["ratio"] <= 1.01 for case in found.values())


@pytest.mark.long
def test_the_daemons_state_is_measured(folder):
    size = ["--shards", "300", "--jobs", "3", "--epochs", "2", "--repeats", "1", "--idle", "0.2"]
    shm = Path("/dev/shm")  # on a disk each shard would wait for its fsyncs
    found, _ = run("state", *size, *([] if os.access(shm, os.W_OK) else ["--dir", str(folder)]))
    assert {**found["runs"][0], **found["rebuild"]}.keys() == state.FIGURES.keys()
    assert found["runs"][0]["rss_mb"] > 10


@pytest.mark.long
def test_all_ways_to_feed_a_loop_are_measured(tmp_path):
    data = ["--data", str(tmp_path / "data"), "--megabytes", "20"]
    found, printed = run("gil", *data, "--repeats", "1", "--seconds", "0.1")
    assert found.keys() == WAYS.keys()
    assert all(figures["mb_s"][0] > 0 for figures in found.values())
    assert "| from_generator |" in printed


@pytest.mark.long
@pytest.mark.parametrize("name", ["recordings", "segmentation"])
def test_a_situation_is_measured(folder, name):
    command = [sys.executable, "-m", "tests.bench.situations", name, "--short", "--folder", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "| cachecd | " in done.stdout


def test_an_accuracy_is_reached_when_it_stays_for_three_snapshots():
    from tests.bench.growth import learner  # which imports torch

    curve = [(1, 70), (2, 86), (3, 84), (4, 86), (5, 87), (6, 86), (7, 80)]
    assert learner.reached(curve, 70) == 1
    assert learner.reached(curve, 85) == 4
    assert math.isinf(learner.reached(curve, 87))
