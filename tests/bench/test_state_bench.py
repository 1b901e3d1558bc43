"""The benchmark of the daemon's state runs, and measures what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.bench.state import BARS, OTHERS, ROOT


def test_it_measures_every_figure_and_leaves_nothing_behind(tmp_path):
    shm = Path("/dev/shm")
    folder = tmp_path / "cache"
    folder.mkdir()
    # On a disk each shard would wait for its fsyncs.
    place = ["--dir", str(folder)] if not os.access(shm, os.W_OK) else []
    before = set(shm.glob("cachecd-bench-*")) if not place else set()
    command = [sys.executable, "-m", "tests.bench.state", "--shards", "300", "--jobs", "3"]
    command += ["--epochs", "2", "--repeats", "1", "--idle", "0.2", *place]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "figures.json")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "figures.json").read_text())
    assert {**found["runs"][0], **found["rebuild"]}.keys() == {*BARS, *OTHERS}
    assert all(name in done.stdout for _, name in BARS.values())
    assert found["runs"][0]["rss_mb"] > 10
    assert list(folder.iterdir()) == []
    assert place or set(shm.glob("cachecd-bench-*")) <= before
