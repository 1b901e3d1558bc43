"""`cachecd doctor` and `cachecd top` as a user meets them: a real daemon, a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import tarfile
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.daemons import clean_environ, file_source, run, trainer, wait_until

OBJECTS = {f"{n}.txt": b"%d" % n * 100 for n in range(50)}
HOLDS = """
import sys
from cachecd_client import connect
with connect() as cache, cache.acquire("train") as epoch:
    for _ in epoch.numpy(8): pass
    print("true", flush=True)
    sys.stdin.read()
"""


class Screen:
    """A terminal of this size, with a command of `cachecd` in it."""

    def __init__(self, arguments: list[str], columns: int, environ: dict[str, str]) -> None:
        self._terminal, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cachecd", *arguments],
            stdin=child, stdout=child, stderr=child, env={**environ, "TERM": "xterm"},
            start_new_session=True,
        )  # fmt: skip
        os.close(child)
        self.text = ""

    def read(self) -> str:
        """Everything that it has shown so far."""
        while select.select([self._terminal], [], [], 0)[0]:
            try:
                data = os.read(self._terminal, 1 << 16)
            except OSError:  # the command has ended
                break
            if not data:
                break
            self.text += data.decode()
        return self.text

    def press(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)


@contextmanager
def screen(*arguments: str, columns: int = 80) -> Iterator[Screen]:
    environ = {k: v for k, v in clean_environ().items() if k not in ("COLUMNS", "LINES")}
    shown = Screen(list(arguments), columns, environ)
    try:
        yield shown
    finally:
        shown.close()


@pytest.fixture
def served(daemon, tmp_path):
    made = daemon({"train": {"source": file_source(tmp_path / "data", OBJECTS)}})
    made.start()
    made.until_whole()
    return made


def doctor(served, *options):
    command = [sys.executable, "-m", "cachecd", "doctor", "--endpoint", served.endpoint, *options]
    return run(command, served)


def test_a_cache_without_a_trainer_is_no_alarm_and_the_bundle_has_what_a_report_needs(
    served, tmp_path
):
    bundle = tmp_path / "bundle.tar.gz"
    done = doctor(served, "--json", "--bundle", str(bundle))
    assert done.returncode == 0, done.stderr
    assert [each["kind"] for each in json.loads(done.stdout)["findings"]] == ["no-trainer"]
    with tarfile.open(bundle) as archive:
        names = {name.removeprefix("cachecd/") for name in archive.getnames()}
        text = "".join(archive.extractfile(name).read().decode() for name in archive.getnames())
    expected = {"doctor", "status-1", "status-2", "config", "history", "story"}
    assert names == {f"{name}.json" for name in expected} | {"versions.txt", "log.txt"}
    assert "17.txt" not in text  # no key of an object


def test_secrets_of_a_users_reader_are_not_in_the_bundle(daemon, tmp_path):
    (tmp_path / "secretive.py").write_text(
        "class Reader:\n"
        "    def __init__(self, **options): pass\n"
        "    def units(self): return 1\n"
        "    def read(self, *about): yield {'x': 1}\n"
    )
    source = {"format": "python", "reader": "secretive:Reader", "options": {"token": "hush-hush"}}
    made = daemon({"train": {"source": source}}, sampler={"path": [str(tmp_path)]})
    made.start()
    doctor(made, "--bundle", str(tmp_path / "b"))
    with tarfile.open(tmp_path / "b") as archive:
        text = "".join(archive.extractfile(name).read().decode() for name in archive.getnames())
    assert "token" in text
    assert "hush-hush" not in text


def test_a_bundle_that_cannot_be_written_is_one_line(served):
    done = doctor(served, "--bundle", "/no/such/folder/b.tar.gz")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "/no/such/folder/b.tar.gz" in done.stderr


@pytest.mark.parametrize("command", ["doctor", "top"])
def test_without_a_daemon_it_says_so_in_one_line(command, tmp_path):
    with screen(command, "--endpoint", f"ipc://{tmp_path}/none.sock") as shown:
        assert shown.process.wait(30) == 1
        said = shown.read()
    assert "none.sock" in said
    assert len(said.strip().splitlines()) <= 2


def test_top_shows_dataset_lease_and_trainer_and_ends_with_q(served):
    with trainer(served, HOLDS) as process:
        assert json.loads(process.stdout.readline())
        with screen("top", "--endpoint", served.endpoint, "--seconds", "0.2") as shown:
            wait_until(lambda: "1 of 1" in shown.read(), what="top shows the lease")
            assert "train" in shown.text
            assert str(served.cache)[:20] in shown.text
            assert max(map(len, shown.text.splitlines())) < 2000
            shown.press(b"q")
            assert shown.process.wait(10) == 0


def test_top_goes_on_when_the_daemon_was_killed_and_started_again(served):
    with screen("top", "--endpoint", served.endpoint, "--seconds", "0.2") as shown:
        wait_until(lambda: "DATASET" in shown.read(), what="top shows datasets")
        served.kill()
        wait_until(lambda: "does not answer" in shown.read(), what="top says that nobody answers")
        before = len(shown.text)
        served.start()
        wait_until(lambda: "DATASET" in shown.read()[before:], what="top shows datasets again")
        shown.press(b"q")
        assert shown.process.wait(10) == 0


def test_a_terminal_of_20_columns_is_refused_in_one_line(served):
    with screen("top", "--endpoint", served.endpoint, columns=20) as shown:
        assert shown.process.wait(20) == 2
        assert "found a terminal of 20 columns" in " ".join(shown.read().split())


def test_top_in_a_pipe_names_the_command_for_pipes(served):
    done = run([sys.executable, "-m", "cachecd", "top", "--endpoint", served.endpoint], served)
    assert done.returncode == 2
    assert "use `cachecd status` in a pipe" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_the_names_of_commands(shell):
    environ = clean_environ(
        {
            "_CACHECD_COMPLETE": f"complete_{shell}", "COMP_WORDS": "cachecd st", "COMP_CWORD": "1",
            "_TYPER_COMPLETE_ARGS": "cachecd st", "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
    )  # fmt: skip
    command = [sys.executable, "-m", "cachecd"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "status" in done.stdout
    assert "verify" not in done.stdout
