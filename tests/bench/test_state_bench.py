"""The benchmark of the daemon's state measures what it says. In the long form alone, CACHECD_LONG=1."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench.shortform import run
from tests.bench.state import BARS, OTHERS


@pytest.mark.long
def test_it_measures_every_figure_and_leaves_nothing_behind(tmp_path):
    shm = Path("/dev/shm")
    folder = tmp_path / "cache"
    folder.mkdir()
    # On a disk each shard would wait for its fsyncs.
    place = ["--dir", str(folder)] if not os.access(shm, os.W_OK) else []
    before = set(shm.glob("cachecd-bench-*")) if not place else set()
    arguments = ["--shards", "300", "--jobs", "3", "--epochs", "2", "--repeats", "1"]
    arguments += ["--idle", "0.2", *place]
    found, printed = run("state", *arguments, figures=tmp_path / "figures.json")
    assert {**found["runs"][0], **found["rebuild"]}.keys() == {*BARS, *OTHERS}
    assert all(name in printed for _, name in BARS.values())
    assert found["runs"][0]["rss_mb"] > 10
    assert list(folder.iterdir()) == []
    assert place or set(shm.glob("cachecd-bench-*")) <= before
