"""The status of a real daemon names what its trainers wait for, and survives what else they send."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

from tests.e2e.daemons import wait_until

TRAINER = """
import sys, time
from cachecd_client import connect

with connect(sys.argv[1]) as cache:
    for epoch in cache.epochs("train", 1000, job="a job"):
        for batch in epoch.numpy(batch_size=64):
            time.sleep(0.001)
"""


def test_status_has_a_row_for_each_trainer_and_forgets_the_socket(daemon, train):
    served = daemon({"train": train()}, limit="8MiB").start()
    reports = Path(f"{served.socket}.reports")
    assert stat.S_IMODE(reports.stat().st_mode) == 0o660
    with subprocess.Popen(
        [sys.executable, "-c", TRAINER, served.endpoint], env=served.environ
    ) as trainer:
        try:
            wait_until(lambda: any(row["steps"] for row in served.status()["trainers"]))
            [row] = served.status()["trainers"]
            assert (row["dataset"], row["job"], row["rank"]) == ("train", "a job", 0)
            assert (row["pid"], row["reader"]) == (trainer.pid, "numpy")
            assert row["records"] == 64 * row["steps"]
            assert 0 <= row["wait_share"] <= 1
            assert abs(sum(row["stages_s"].values()) - row["waited_s"]) < 0.01
            shown = subprocess.run(
                [sys.executable, "-m", "cachecd", "status", served.endpoint],
                env=served.environ, capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            assert f"of a job: rank 0 (pid {trainer.pid}, numpy)" in shown
            assert "of the last minute" in shown
        finally:
            trainer.kill()
    assert served.terminate() == 0
    assert not reports.exists()


def test_a_flood_of_reports_delays_no_reply(daemon, train):
    served = daemon({"train": train()}, limit="8MiB").start()
    child = os.fork()
    if child == 0:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.connect(f"{served.socket}.reports")
                while True:
                    sender.send(b"[" * 10_000)
        finally:
            os._exit(0)
    try:
        seconds = []
        for _ in range(20):
            asked = time.monotonic()
            served.status()
            seconds.append(time.monotonic() - asked)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert sorted(seconds)[10] < 0.25
