"""A listing on a file system that becomes full, a real one: see full_disk.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.daemons import REPOSITORY
from tests.faults.test_disk_limit import own_mounts


def test_full_disk_stops_a_listing_and_keeps_what_is_listed(tmp_path):
    if not own_mounts():
        pytest.skip("this machine allows no mounts in a namespace")
    command = [*own_mounts(), sys.executable, "-m", "tests.listing.full_disk", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stderr
