"""One daemon per directory, one owner per socket, with real processes and sockets."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from cachecd.daemon.ownership import (
    claim_directory,
    claim_socket,
    make_private_directory,
    open_socket_to_group,
)
from cachecd.disk.layout import Layout
from cachecd.errors import ConfigError, InUseError

OWNER = """
import subprocess, sys
from pathlib import Path
from cachecd.daemon.ownership import claim_directory

owned = claim_directory(Path(sys.argv[1]), "ipc:///run/one.sock")
owned.__enter__()
if "sampler" in sys.argv:  # the worst case: every inheritable descriptor goes to the child
    wait = "import sys; sys.stdin.read()"
    sampler = subprocess.Popen([sys.executable, "-c", wait], close_fds=False)
print("mine", flush=True)
sys.stdin.read()
"""


def refused(claim):
    """A claim that raises."""
    with claim:
        raise AssertionError("it was not refused")


@pytest.fixture
def owner(tmp_path):
    """Starts a process that owns the cache directory."""
    started = []

    def start(*words):
        process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(Layout(tmp_path).lock), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "mine\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_second_daemon_on_a_directory_fails_at_once_and_names_the_first(owner, tmp_path):
    first = owner()
    with pytest.raises(InUseError) as raised:
        refused(claim_directory(Layout(tmp_path).lock, "ipc:///run/two.sock"))
    assert str(raised.value) == (
        f"cache directory {tmp_path} is in use by cachecd pid {first.pid} on "
        f"{socket.gethostname()} (socket ipc:///run/one.sock)"
    )


@pytest.mark.parametrize("words", [(), ("sampler",)])
def test_a_daemon_that_is_killed_owns_nothing_even_if_its_samplers_live(owner, tmp_path, words):
    first = owner(*words)
    first.send_signal(signal.SIGKILL)
    first.wait()
    with claim_directory(Layout(tmp_path).lock, "ipc:///run/two.sock"):
        assert json.loads(Layout(tmp_path).lock.read_text()) == {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "socket": "ipc:///run/two.sock",
        }


def test_a_lock_file_that_its_last_owner_removes_is_created_again(tmp_path, monkeypatch):
    lock, opened, first = Layout(tmp_path).lock, os.open, contextlib.ExitStack()
    first.enter_context(claim_directory(lock, "first"))

    def open_then_lose(path, *arguments):
        fd = opened(path, *arguments)
        first.close()
        return fd

    monkeypatch.setattr(os, "open", open_then_lose)
    with claim_directory(lock, "second"):
        assert json.loads(lock.read_text())["socket"] == "second"


@pytest.fixture
def path(tmp_path):
    make_private_directory(tmp_path / "run")
    return tmp_path / "run" / "cachecd.sock"


def test_a_stale_socket_is_removed(path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    with claim_socket(path):
        assert not path.exists()


def test_a_socket_with_a_listening_process_is_not_removed(path):
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen(0)
        for _ in range(4):  # also when its backlog is full
            with pytest.raises(InUseError, match=f"socket {path} is in use by"):
                refused(claim_socket(path))
        with pytest.raises(InUseError):
            refused(claim_socket(path))
        assert sorted(p.name for p in path.parent.iterdir()) == ["cachecd.sock"]


def test_a_claimed_socket_cannot_be_claimed_before_it_is_bound(path):
    with claim_socket(path), pytest.raises(InUseError) as raised:
        refused(claim_socket(path))
    assert str(raised.value) == (
        f"socket {path} is in use by cachecd pid {os.getpid()} on {socket.gethostname()} (socket ipc://{path})"
    )
    assert list(path.parent.iterdir()) == []


def test_the_longest_path_is_accepted_and_one_byte_more_is_refused(path):
    room = 107 - len(os.fsencode(path.parent)) - 1
    longest = path.with_name("s" * room)
    with claim_socket(longest), socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(longest))
    with pytest.raises(ConfigError, match="has 108 bytes, the system allows at most 107"):
        refused(claim_socket(path.with_name("s" * (room + 1))))


def test_a_file_in_the_socket_s_place_is_not_removed(path):
    path.write_text("mine")
    with pytest.raises(ConfigError, match="exists and is not a socket"):
        refused(claim_socket(path))
    assert path.read_text() == "mine"


def test_the_group_may_connect_and_nobody_else(path):
    old = os.umask(0o027)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o750
    open_socket_to_group(path)
    assert path.stat().st_mode & 0o777 == 0o660
