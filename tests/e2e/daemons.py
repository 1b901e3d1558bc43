"""`cachecd run` as a real process: configured, started, watched, killed, looked at from outside."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cachecd_client import connect
from cachecd_client.errors import DaemonUnreachableError
from cachecd_client.session.cache import Cache
from cachecd_client.transport import Transport
from tests.hatchery import Hatched, Hatchery, early

REPOSITORY = Path(__file__).parents[2]
STARTED_WITHIN = 30.0  # seconds; it takes one
DRAINED_WITHIN = 10.0  # seconds; promised
_LAUNCHERS = (
    *("CACHECD_", "AWS_", "LOCAL_", "TORCHELASTIC_", "SLURM_", "RAY_", "PBS_", "LSB_"),
    *("PMIX_", "OMPI_", "MPI_", "HOROVOD_"),
)


def wait_until(condition: Callable[[], object], seconds: float = 60.0, what: str = "") -> None:
    """Polls until the condition holds; fails the test if it does not in time.

    What is waited for needs the processor that asking takes: the longer it takes, the rarer the question.
    """
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, f"not within {seconds:g} s: {what or condition}"
        time.sleep(min(max(0.005, waited / 10), 0.05))


def clean_environ(*more: Mapping[str, str]) -> dict[str, str]:
    """This process's variables without what names a daemon, a launcher or credentials, and `more`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHERS)}
    found = {**kept, "PYTHONPATH": str(REPOSITORY), "AWS_EC2_METADATA_DISABLED": "true"}
    # A configuration of whoever runs the tests is no part of them.
    found |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    for variables in more:
        found |= variables
    return found


@functools.cache
def _hatchery() -> Hatchery:
    made = Hatchery(clean_environ())
    atexit.register(made.__exit__)
    return made


class Daemon:
    """One configuration, and the daemon that serves it; a context manager that leaves no process.

    It is forked from a process that has done its imports, unless its variables concern the start of an
    interpreter: a suite starts some hundred, and imports are most of what a start takes.

    `folder` gets config.yaml, the cache, the socket's directory and the log. `dataset`s, sections
    and environment as given; what is not given is small, so that a test is quick.
    """

    def __init__(
        self,
        folder: Path,
        datasets: Mapping[str, Any],
        environ: Mapping[str, str] | None = None,
        *,
        limit: int | str = "64MiB",
        shard_size: int | str = "256KiB",
        sampler: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.config = folder / "config.yaml"
        self.cache = folder / "cache"
        self.socket = folder / "run" / "cachecd.sock"
        self.endpoint = f"ipc://{self.socket}"
        self.log = folder / "stderr"
        self.environ = clean_environ(environ or {})
        self.document: dict[str, Any] = {
            "version": 1,
            "cache": {"dir": str(self.cache), "limit": limit, "shard_size": shard_size},
            "datasets": dict(datasets),
            # Each is a third of a start.
            "sampler": {"workers": 1, **(sampler or {})},
            "server": {"endpoint": self.endpoint},
        }
        self._process: subprocess.Popen[bytes] | Hatched | None = None

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def write_config(self) -> None:
        self.config.write_text(json.dumps(self.document, indent=2))  # JSON is YAML

    def command(self, *options: str) -> list[str]:
        return [sys.executable, "-m", "cachecd", "run", str(self.config), *options]

    def verify(self) -> int:
        """The status of `cachecd verify --report`."""
        named = ["verify", str(self.cache), "--report", "--endpoint", self.endpoint]
        command = [sys.executable, "-m", "cachecd", *named]
        return subprocess.run(command, env=self.environ, stdout=subprocess.DEVNULL).returncode

    def start(self, *options: str) -> Daemon:
        """Starts it, and returns when it answers."""
        self.write_config()
        self._process = self._launch(options)
        deadline = time.monotonic() + STARTED_WITHIN
        while True:
            try:
                connect(self.endpoint, timeout=0.25).close()
                return self
            except DaemonUnreachableError:
                assert self._process.poll() is None, f"it ended:\n{self.said()}"
                assert time.monotonic() < deadline, f"it does not answer:\n{self.said()}"

    @property
    def _is_hatched(self) -> bool:
        return early(self.environ) == early(clean_environ())

    def _launch(self, options: Sequence[str]) -> subprocess.Popen[bytes] | Hatched:
        if not self._is_hatched:
            return self._execute(options)
        return _hatchery().start(self.config, self.log, *options, environ=self.environ)

    def _execute(self, options: Sequence[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command(*options),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environ,
                cwd=self.folder,
            )

    def run(
        self, *options: str, trainer: Sequence[str] = (), timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs it to its end, with a trainer or because it cannot start."""
        self.write_config()
        options = (*options, *(["--", *trainer] if trainer else []))
        if not self._is_hatched:
            return run(self.command(*options), self, timeout)
        with tempfile.TemporaryDirectory() as folder:
            out, log = Path(folder) / "out", Path(folder) / "log"
            process = _hatchery().start(self.config, log, *options, environ=self.environ, out=out)
            try:
                code = process.wait(timeout)
            finally:
                process.kill()
            texts = out.read_text(), log.read_text()
            return subprocess.CompletedProcess(["cachecd", "run", *options], code, *texts)

    def connect(self, timeout: float = 10.0) -> Cache:
        return connect(self.endpoint, timeout=timeout)

    def status(self) -> dict[str, Any]:
        # Without the question by which `connect` finds out whether somebody answers.
        with Cache(Transport(self.endpoint), 10.0) as cache:
            return cache.status()

    @property
    def train(self) -> dict[str, Any]:
        """The status of the dataset `train`."""
        found: dict[str, Any] = self.status()["datasets"]["train"]
        return found

    def skipped(self, dataset: str = "train") -> dict[str, str]:
        """The reason of each skipped unit that the status names, by key."""
        reasons = self.status()["datasets"][dataset]["skipped"]["reasons"]
        return {key: why for why, about in reasons.items() for key in about["examples"]}

    def until_whole(self, *datasets: str) -> None:
        """Waits until these datasets, or `train`, are cached whole."""
        for name in datasets or ("train",):
            wait_until(
                lambda: self.status()["datasets"][name]["whole"],  # noqa: B023
                what=f"all of {name} is cached",
            )

    def settle(self) -> None:
        """Waits until ingest has done all that it may before the next epoch begins.

        Nothing is being made then, and what was retired is gone: so not while somebody holds it.
        """

        def settled() -> bool:
            status = self.status()
            busy = any(d["making"] or d["retired_shards"] for d in status["datasets"].values())
            return not (busy or status["cache"]["reserved"])

        wait_until(settled, what="ingest has done what it may")

    def said(self) -> str:
        """Everything that it and its samplers have written so far."""
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """kill -9; its samplers follow by themselves, and none is left when this returns."""
        left = descendants(self.pid)
        self._end(signal.SIGKILL)
        wait_until(lambda: not any(map(alive, left)), what=f"no sampler is left of {left}")

    def terminate(self) -> int:
        """SIGTERM; the exit code. Fails if it takes longer than it may or leaves a process."""
        left = descendants(self.pid)
        code = self._end(signal.SIGTERM)
        wait_until(lambda: not any(map(alive, left)), 1.0, f"no sampler is left of {left}")
        return code

    def _end(self, number: int) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(DRAINED_WITHIN)
        self._process = None
        return code

    def temporaries(self) -> list[str]:
        """What workers are writing, or left."""
        return sorted(path.name for path in self.cache.glob("datasets/*/*/shards/*.new*"))


class ExecutedDaemon(Daemon):
    """Started by exec, imports and all, as a service manager does: whose start or memory is measured."""

    @property
    def _is_hatched(self) -> bool:
        return False


def run(
    command: Sequence[str], daemon: Daemon, timeout: float = 60.0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a command in the daemon's folder and environment, output captured."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=daemon.environ,
        cwd=daemon.folder,
        timeout=timeout,
        check=False,
        **options,
    )


@contextlib.contextmanager
def trainer(daemon: Daemon, code: str, *arguments: str, **environ: str) -> Iterator[Any]:
    """Runs Python source that finds the daemon in its environment; its stdout can be read."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**daemon.environ, "CACHECD_ENDPOINT": daemon.endpoint, **environ},
        cwd=daemon.folder,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def said_line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the trainer ended with {process.wait()}"
    return json.loads(line)


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        if fields := _stat(int(name)):
            children.setdefault(int(fields[1]), []).append(int(name))
    found = list(children.get(pid, ()))
    for child in found:  # grows as it is walked
        found += children.get(child, ())
    return found


def alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has waited for yet does not."""
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z"


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, parent's pid ...; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def file_source(folder: Path, objects: Mapping[str, bytes]) -> dict[str, Any]:
    for key, body in objects.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return {"url": f"file://{folder}", "format": "files"}
