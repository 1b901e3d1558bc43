"""Real usage of a real small file system, asked without a pause, while samplers burst through shards."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest

from tests.e2e.daemons import REPOSITORY, clean_environ

SCENARIOS = ["burst", "reserve_free", "full_at_the_start"]


@functools.cache
def own_mounts() -> list[str]:
    """The command before a command that gives it mounts of its own; empty where that is forbidden."""
    for command in (["unshare", "-Urm", "--"], ["unshare", "-m", "--"]):
        tried = subprocess.run(
            [*command, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
        )
        if tried.returncode == 0:
            return command
    return []


@pytest.fixture(scope="module")
def failures(tmp_path_factory) -> dict[str, str]:
    """The failures by scenario. One process runs all scenarios, because its imports take a second."""
    folder = str(tmp_path_factory.mktemp("disk"))
    command = [sys.executable, "-m", "tests.faults.small_disk", folder, *SCENARIOS]
    command = [*own_mounts(), *command] if own_mounts() else [*command, "--plain"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=clean_environ(), cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout)


def test_a_burst_through_many_shards_and_leases_never_takes_more_than_the_limit(failures):
    assert "burst" not in failures, failures["burst"]


def test_what_is_reserved_for_others_stays_free_and_ingest_goes_on_when_they_are_gone(failures):
    assert "reserve_free" not in failures, failures["reserve_free"]


def test_a_start_on_a_full_disk_serves_what_is_cached_and_goes_on_when_there_is_room(failures):
    assert "full_at_the_start" not in failures, failures["full_at_the_start"]
