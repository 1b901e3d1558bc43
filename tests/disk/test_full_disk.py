"""A file system that is full, a real one: see full_disk.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.daemons import REPOSITORY
from tests.faults.test_disk_limit import own_mounts


def test_full_disk_refuses_only_what_needs_room(tmp_path):
    if not own_mounts():
        pytest.skip("this machine allows no mounts in a namespace")
    command = [*own_mounts(), sys.executable, "-m", "tests.disk.full_disk", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stderr
