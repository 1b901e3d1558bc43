"""Real usage of a real small file system, asked without a pause, while samplers burst through shards."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

from tests.e2e.daemons import REPOSITORY, clean_environ


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


def run(scenario: str, tmp_path) -> None:
    command = [sys.executable, "-m", "tests.faults.small_disk", scenario, str(tmp_path / "d")]
    command = [*own_mounts(), *command] if own_mounts() else [*command, "--plain"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=clean_environ(), cwd=REPOSITORY, timeout=120
    )
    assert done.returncode == 0, done.stderr[-5000:]


def test_a_burst_through_many_shards_and_leases_never_takes_more_than_the_limit(tmp_path):
    run("burst", tmp_path)


def test_what_is_reserved_for_others_stays_free_and_ingest_goes_on_when_they_are_gone(tmp_path):
    run("reserve_free", tmp_path)


@pytest.mark.long
def test_a_disk_without_inodes_stops_ingest_alone_and_ingest_goes_on_by_itself(tmp_path):
    run("inodes", tmp_path)


@pytest.mark.long
def test_a_start_on_a_disk_without_inodes_ends_and_loses_nothing(tmp_path):
    run("inodes_at_the_start", tmp_path)


def test_a_start_on_a_full_disk_serves_what_is_cached_and_goes_on_when_there_is_room(tmp_path):
    run("full_at_the_start", tmp_path)


@pytest.mark.long
def test_a_start_on_a_full_disk_serves_shards_that_no_snapshot_has(tmp_path):
    run("full_without_snapshot", tmp_path)
