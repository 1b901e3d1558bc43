"""Ctrl-C at a terminal, under `cachecd run CONFIG -- TRAINER`: SIGINT to the daemon and its trainer."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cachecd.daemon.trainer import Stop, run_trainer
from tests.e2e.daemons import Daemon, wait_until
from tests.hatchery import Hatched

TRAINER = """
import pathlib, signal, sys, time

said = pathlib.Path(sys.argv[1])

def say(word):
    with said.open("a") as file:
        file.write(word + " ")

signal.signal(signal.SIGTERM, lambda *_: say("SIGTERM"))
try:
    say("begun")
    while True:
        time.sleep(0.05)
        if sys.argv[2] == "obedient" and "SIGTERM" in said.read_text():
            sys.exit(5)
except KeyboardInterrupt:
    say("SIGINT")
    time.sleep(0.5)
    say("saved")
    sys.exit(7)
"""


@contextmanager
def run_with(served: Daemon, said: Path, how: str) -> Iterator[Hatched]:
    """The daemon, which leads a process group, and its trainer, which has begun."""
    served.write_config()
    process = served._launch(("--", sys.executable, "-c", TRAINER, str(said), how))
    try:
        wait_until(
            lambda: said.exists() and said.read_text() == "begun ", what="the trainer has begun"
        )
        yield process
    finally:
        process.kill()
        process.wait()


def test_ctrl_c_leaves_the_trainer_time_to_save_and_its_exit_code_is_passed_on(
    daemon, train, tmp_path
):
    served = daemon({"train": train()})
    said = tmp_path / "said"
    with run_with(served, said, "saving") as process:
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) == 7
    assert said.read_text() == "begun SIGINT saved "
    assert not served.socket.exists()


async def test_after_its_grace_an_interrupted_trainer_gets_sigterm(tmp_path):
    stop, said = Stop(), tmp_path / "said"
    command = [sys.executable, "-c", TRAINER, str(said), "obedient"]
    running = asyncio.ensure_future(run_trainer(command, "ipc://none", stop, 0o022, grace=0.3))
    while not (said.exists() and said.read_text()):
        await asyncio.sleep(0.01)
    stop.interrupt()
    began = time.monotonic()
    assert await running == 5
    assert time.monotonic() - began >= 0.3
    assert said.read_text() == "begun SIGTERM "


def test_sigterm_is_passed_on_at_once(daemon, train, tmp_path):
    served = daemon({"train": train()})
    said = tmp_path / "said"
    with run_with(served, said, "obedient") as process:
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 5
        assert time.monotonic() - began < 8, "without the grace of Ctrl-C"
    assert said.read_text() == "begun SIGTERM "
