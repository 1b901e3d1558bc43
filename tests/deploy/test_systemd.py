"""The service file: as systemd reads it, and in the facts that the daemon relies on."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "cachecd.service"
EXECUTABLE = "/opt/cachecd/bin/cachecd"

with_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="this machine has no systemd to ask"
)


LINES = [line for line in UNIT.read_text().splitlines() if line and line[0] not in "#["]
SETTINGS = dict(line.split("=", 1) for line in LINES)  # of a name that occurs twice the last


@pytest.fixture
def installed(tmp_path):
    """The unit as installed on a machine where its executable exists."""
    copy = tmp_path / UNIT.name
    text = UNIT.read_text()
    assert text.count(EXECUTABLE) == 1
    copy.write_text(text.replace(EXECUTABLE, sys.executable))
    return copy


def analyze(*arguments):
    return subprocess.run(
        ["systemd-analyze", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )


@with_systemd
def test_systemd_has_nothing_to_say_against_the_unit(installed):
    verified = analyze("verify", installed)
    assert (verified.returncode, verified.stdout) == (0, "")


@with_systemd
def test_the_service_is_exposed_to_little(installed):
    report = analyze("security", "--offline=yes", "--no-pager", installed)
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", report.stdout)
    assert exposure, report.stdout
    assert float(exposure[1]) <= 2.0


def test_the_socket_and_the_cache_are_for_the_group_alone():
    assert SETTINGS["User"] == SETTINGS["Group"] == SETTINGS["RuntimeDirectory"] == "cachecd"
    assert SETTINGS["RuntimeDirectoryMode"] == SETTINGS["StateDirectoryMode"] == "0750"
    assert SETTINGS["StateDirectory"] == "cachecd"
    assert SETTINGS["UMask"] == "0027"


def test_a_stop_leaves_time_to_drain_and_reaches_the_daemon_first():
    assert SETTINGS["KillMode"] == "mixed"
    assert int(SETTINGS["TimeoutStopSec"]) > 10


def test_a_wrong_configuration_is_not_tried_again_and_a_crash_is():
    assert SETTINGS["Restart"] == "on-failure"
    assert SETTINGS["RestartPreventExitStatus"] == "2"


def test_readiness_and_life_are_told_by_the_daemon_itself():
    assert SETTINGS["Type"] == "notify"
    assert int(SETTINGS["WatchdogSec"]) >= 30
    assert SETTINGS["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_credentials_are_in_no_file_of_ours():
    assert SETTINGS["EnvironmentFile"] == "-/etc/cachecd/environment"
    assert not re.search("KEY|SECRET|TOKEN", UNIT.read_text())
