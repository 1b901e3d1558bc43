"""`cachecd demo` as a user runs it: a process of its own, with nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_PATIENCE = 240  # seconds: twenty times what it takes on a machine that does nothing else


def processes_in(folder: Path) -> list[str]:
    """All processes that were started with this temporary directory, or work in it."""
    found = []
    for entry in filter(lambda entry: entry.name.isdigit(), Path("/proc").iterdir()):
        try:
            place = os.fsencode(os.readlink(entry / "cwd"))
            if os.fsencode(folder) in (entry / "environ").read_bytes() + place:
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # another user's, or it has just ended
    return found


@pytest.mark.timeout(300)
def test_demo_grows_within_its_limit_and_leaves_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "cachecd", "demo", "--epochs", "3", "--json"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    *_, first, second, third, summary = rows
    assert [row["kind"] for row in rows[-4:]] == ["epoch", "epoch", "epoch", "summary"]
    assert first["records"] < third["records"]
    assert first["seen"] <= second["seen"] <= third["seen"]
    assert (summary["epochs"], summary["limit_kept"]) == (3, True)
    assert 0 < summary["most_disk_bytes"] <= first["limit_bytes"]
    assert summary["measurements"] > 1
    assert [*processes_in(tmp_path), *tmp_path.rglob("*")] == []
