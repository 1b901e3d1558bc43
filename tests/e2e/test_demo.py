"""`cachecd demo` as a user runs it: a process of its own, with nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)  # seconds, as below

ACCURACY = 0.5  # of ten classes: chance finds 0.1
TRAIN_IMAGES = 1600
_PATIENCE = 240  # seconds: twenty times what it takes on a machine that does nothing else


class Demo:
    def __init__(self, tmp: Path, *options: str) -> None:
        self.tmp = tmp
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cachecd", "demo", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp)},
            start_new_session=True,
        )

    def lines_until(self, text: str) -> list[str]:
        """What it prints, up to the first line with this text."""
        lines: list[str] = []
        for line in self.process.stdout:
            lines.append(line)
            if text in line:
                return lines
        pytest.fail(
            f"{text!r} was never printed, but:\n{''.join(lines)}{self.process.stderr.read()}"
        )

    def end(self) -> tuple[str, str]:
        """The rest of stdout, and stderr, once it has ended."""
        return self.process.communicate(timeout=_PATIENCE)

    def processes(self) -> dict[int, str]:
        """All processes that were started with this temporary directory, or work in it."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                named = b"%b %b" % (
                    (entry / "environ").read_bytes(),
                    os.readlink(os.fsencode(entry / "cwd")),
                )
                if os.fsencode(self.tmp) in named:
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue  # another user's, or it has just ended
        return found

    def left(self) -> list[str]:
        return [*self.processes().values(), *map(str, self.tmp.rglob("*"))]


@pytest.fixture
def start(tmp_path):
    """start(*options): a running demo, which has ended when the test has."""
    with ExitStack() as ended:

        def demo(*options: str) -> Demo:
            found = Demo(tmp_path, *options)
            ended.enter_context(found.process)  # closes its pipes and waits
            ended.callback(found.process.terminate)
            return found

        yield demo


@pytest.mark.long
def test_cache_grows_and_rotates_within_its_limit_until_ctrl_c(start):
    demo = start("--epochs", "60", "--json")
    setting = json.loads(demo.lines_until('"setting"')[-1])
    rows = []
    while not rows or not rows[-1]["evicted_shards"]:
        rows.append(json.loads(demo.lines_until('"epoch"')[-1]))
    running = "\n".join(demo.processes().values())
    assert "cachecd run" in running
    assert "cachecd.sampler" in running
    # As a terminal does, the whole process group; and again, by a hand that cannot wait.
    os.killpg(demo.process.pid, signal.SIGINT)
    os.killpg(demo.process.pid, signal.SIGINT)
    _, errors = demo.end()
    assert demo.process.returncode == 130
    assert "Traceback" not in errors
    assert demo.left() == []

    assert [row["epoch"] for row in rows] == list(range(len(rows)))
    records = [row["records"] for row in rows]
    assert records[0] < records[-1]
    assert rows[0]["files"] < rows[-1]["files"]
    assert max(records) < TRAIN_IMAGES / 2, "the limit has room for less than half"
    seen = [row["seen"] for row in rows]
    assert seen == sorted(seen)
    assert seen[0] == records[0] / TRAIN_IMAGES
    assert rows[0]["evicted_shards"] == 0
    assert setting["limit_bytes"] < setting["pixel_bytes"], "not all of it may fit"
    assert all(0 < row["disk_bytes"] <= setting["limit_bytes"] for row in rows)
    assert max(row["disk_bytes"] for row in rows) > setting["limit_bytes"] / 2
    assert all(row["read_bytes_per_second"] > 0 for row in rows)
    assert rows[0]["waited_seconds"] > 0
    assert rows[-1]["accuracy"] > ACCURACY


def test_demo_grows_within_its_limit_and_leaves_nothing(start):
    demo = start("--epochs", "3", "--json")
    output, errors = demo.end()
    assert demo.process.returncode == 0, errors
    rows = [json.loads(line) for line in output.splitlines()]
    *_, first, second, third, summary = rows
    assert [row["kind"] for row in rows[-4:]] == ["epoch", "epoch", "epoch", "summary"]
    assert first["records"] < third["records"]
    assert first["seen"] <= second["seen"] <= third["seen"]
    assert (summary["epochs"], summary["limit_kept"]) == (3, True)
    assert 0 < summary["most_disk_bytes"] <= first["limit_bytes"]
    assert summary["measurements"] > 1
    assert demo.left() == []


@pytest.mark.long
def test_a_reader_that_goes_away_ends_it(start):
    demo = start("--epochs", "60")
    demo.lines_until("epoch  files")
    demo.process.stdout.close()
    assert demo.process.wait(_PATIENCE) == 1
    errors = demo.process.stderr.read()
    assert "Traceback" not in errors
    assert "Broken" not in errors
    assert demo.left() == []
