"""Ctrl-C at a terminal, under `cachecd run CONFIG -- TRAINER`."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cachecd.daemon.trainer import Stop, run_trainer
from tests.e2e.daemons import Daemon, wait_until

TRAINER = """
import pathlib, signal, sys, time

said = pathlib.Path(sys.argv[1])

def say(word):
    with said.open("a") as file:
        file.write(word + " ")

def hear(word):
    return lambda *_: say(word)

signal.signal(signal.SIGTERM, hear("SIGTERM"))
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGINT, hear("SIGINT"))
try:
    say("begun")
    while True:
        time.sleep(0.05)
        if sys.argv[2] == "obedient" and "SIGTERM" in said.read_text():
            sys.exit(5)
except KeyboardInterrupt:
    say("SIGINT")
    time.sleep(1.0)
    say("saved")
    sys.exit(7)
"""


@contextmanager
def at_a_terminal(
    served: Daemon, said: Path, how: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The daemon with its trainer as what runs in the foreground, and the keyboard."""
    served.write_config()
    keyboard, screen = pty.openpty()
    with served.log.open("ab") as log:
        process = subprocess.Popen(
            [*served.command(), "--", sys.executable, "-c", TRAINER, str(said), how],
            stdin=screen,
            stdout=log,
            stderr=log,
            env=served.environ,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
    os.close(screen)
    try:
        wait_until(
            lambda: said.exists() and said.read_text() == "begun ", what="the trainer has begun"
        )
        yield process, keyboard
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(keyboard)


def test_ctrl_c_leaves_the_trainer_time_to_save_and_its_exit_code_is_passed_on(
    daemon, train, tmp_path
):
    served = daemon({"train": train()})
    said = tmp_path / "said"
    with at_a_terminal(served, said, "saving") as (process, keyboard):
        os.write(keyboard, b"\x03")
        assert process.wait(30) == 7
    assert said.read_text() == "begun SIGINT saved "
    assert not served.socket.exists()


@pytest.mark.long
def test_a_second_ctrl_c_ends_a_trainer_that_ignores_everything(daemon, train, tmp_path):
    served = daemon({"train": train()})
    said = tmp_path / "said"
    with at_a_terminal(served, said, "stubborn") as (process, keyboard):
        os.write(keyboard, b"\x03")
        wait_until(lambda: said.read_text() == "begun SIGINT ", what="it has heard it")
        # Two signals that a process has not handled yet are delivered as one.
        wait_until(lambda: "Ctrl-C again" in served.log.read_text(), what="so has the daemon")
        began = time.monotonic()
        os.write(keyboard, b"\x03")
        assert process.wait(30) == 128 + signal.SIGKILL
        assert time.monotonic() - began < 10
    first, *then = said.read_text().split()
    assert (first, sorted(then)) == ("begun", ["SIGINT", "SIGINT", "SIGTERM"])


def test_after_its_grace_an_interrupted_trainer_gets_sigterm(tmp_path):
    async def story() -> int:
        stop, said = Stop(), tmp_path / "said"
        command = [sys.executable, "-c", TRAINER, str(said), "obedient"]
        running = asyncio.ensure_future(run_trainer(command, "ipc://none", stop, 0o022, grace=0.3))
        while not (said.exists() and said.read_text()):
            await asyncio.sleep(0.01)
        stop.interrupt()
        began = time.monotonic()
        code = await running
        assert time.monotonic() - began >= 0.3
        return code

    assert asyncio.run(story()) == 5
    assert (tmp_path / "said").read_text() == "begun SIGTERM "


def test_sigterm_is_passed_on_at_once(daemon, train, tmp_path):
    served = daemon({"train": train()})
    said = tmp_path / "said"
    with at_a_terminal(served, said, "obedient") as (process, _):
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 5
        assert time.monotonic() - began < 8, "without the grace of Ctrl-C"
    assert said.read_text() == "begun SIGTERM "


@pytest.mark.parametrize(("how", "code"), [("interrupt", 130), ("ask", 143)])
def test_a_trainer_is_not_begun_once_the_daemon_is_to_end(tmp_path, how, code):
    async def story() -> int:
        stop = Stop()
        getattr(stop, how)()
        return await run_trainer(["touch", str(tmp_path / "begun")], "ipc://none", stop, 0o022)

    assert asyncio.run(story()) == code
    assert not (tmp_path / "begun").exists()
