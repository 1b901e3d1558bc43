"""Daemons that start within milliseconds: forked from a process that has imported all they need.

    with Hatchery(environ) as hatchery:
        daemon = hatchery.start(config, log)
        daemon.kill(); daemon.wait()

What runs is `cachecd run CONFIG`, line for line; but imports, most of a start's second, are done. Samplers
are forked from the daemon, for the same reason, unless they have another interpreter. Everything else is
real: on disk, every process, signal and lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from cachecd.cli import run_command
from cachecd.executors import process
from cachecd.sampler import __main__ as sampler

REPOSITORY = Path(__file__).parents[1]
_EARLY = ("LD_", "PYTHON")  # variables that count when the linker and the interpreter start


def early(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that must be there before a program begins."""
    return {key: value for key, value in environ.items() if key.startswith(_EARLY)}


class Hatched:
    """A daemon that was forked for us; of Popen's methods those that one needs."""

    def __init__(self, hatchery: Hatchery, pid: int) -> None:
        self.pid = pid
        self._hatchery = hatchery
        self._handle = os.pidfd_open(pid)
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float = 30.0) -> int:
        if self.returncode is None:
            if not select.select([self._handle], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"daemon {self.pid}", timeout)
            self.returncode = self._hatchery.reap(self.pid)
            os.close(self._handle)
        return self.returncode


class Hatchery:
    """The process that forks daemons, with these variables; a context manager.

    `prepared`: a module whose `prepare()` is called in it before it forks any. Threads may share it.
    """

    def __init__(self, environ: Mapping[str, str], prepared: str = "") -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hatchery", *([prepared] if prepared else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environ, "PYTHONPATH": str(REPOSITORY)},
        )

    def __enter__(self) -> Hatchery:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def start(
        self, config: Path, log: Path, *options: str, environ: Mapping[str, str] | None = None,
        out: Path | None = None,
    ) -> Hatched:  # fmt: skip
        """Starts a daemon, in its configuration's folder; it does not answer yet. `environ`: its
        variables, the hatchery's if None. What the linker and the interpreter read of them when they
        start comes too late. `log` gets stderr, `out` stdout, which is `log` if None.
        """
        arguments = ["run", str(config), *options]
        asked = {"arguments": arguments, "folder": str(config.parent), "log": str(log)}
        asked["out"] = str(out or log)
        return Hatched(self, self._ask({**asked, "environ": environ}))

    def reap(self, pid: int) -> int:
        return os.waitstatus_to_exitcode(self._ask({"reap": pid}))

    def _ask(self, request: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())


# --- in the process that forks


def _serve() -> None:
    known = {"PIPE": subprocess.PIPE, "TimeoutExpired": subprocess.TimeoutExpired}
    process.subprocess = SimpleNamespace(Popen=_popen, **known)  # type: ignore[assignment]
    for prepared in sys.argv[1:]:
        importlib.import_module(prepared).prepare()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        if "reap" in request:
            _, answer = os.waitpid(request["reap"], 0)
        else:
            answer = os.fork()
            if not answer:
                _be_a_daemon(**request)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _be_a_daemon(
    arguments: Sequence[str], folder: str, log: str, out: str, environ: Mapping[str, str] | None
) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        if environ is not None:
            os.environ.clear()
            os.environ.update(environ)
        nothing = os.open(os.devnull, os.O_RDONLY)
        to = [os.open(each, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) for each in (out, log)]
        for number, fd in enumerate((nothing, *to)):
            os.dup2(fd, number)
        os.closerange(3, 256)
        code = run_command(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _popen(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes] | ForkedSampler:
    is_ours = list(command[:3]) == [sys.executable, "-m", "cachecd.sampler"]
    if is_ours and early(options["env"]) == early(os.environ):
        return ForkedSampler(options["env"], options["pass_fds"])
    return subprocess.Popen(command, **options)


class ForkedSampler:
    """What an executor needs of Popen, for `python -m cachecd.sampler PROGRESS_FD LINK_FD`."""

    def __init__(self, environ: Mapping[str, str], passed: Sequence[int]) -> None:
        requests, give = os.pipe()
        take, replies = os.pipe()
        leads, told = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            _be_a_sampler(requests, replies, told, passed, environ)
        for fd in (requests, replies, told):
            os.close(fd)
        os.read(leads, 1)  # from now on it can be killed with its group
        os.close(leads)
        self.stdin = os.fdopen(give, "wb", 0)
        self.stdout = os.fdopen(take, "rb", 0)

    def wait(self, timeout: float | None = None) -> int:
        """Without a limit: an executor waits for a sampler when it has ended."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def communicate(self) -> None:
        """It was killed, and its pipes are not needed any more."""
        self.stdin.close()
        self.stdout.close()
        self.wait()


def _be_a_sampler(
    requests: int, replies: int, told: int, passed: Sequence[int], environ: Mapping[str, str]
) -> NoReturn:
    code = 1
    try:
        os.setsid()
        os.close(told)
        signal.set_wakeup_fd(-1)
        sys.path.insert(0, os.getcwd())  # as `python -m` does
        os.environ.clear()
        os.environ.update(environ)
        os.dup2(requests, 0)
        os.dup2(replies, 1)
        # Above all others first: neither may take the other's new number.
        aside = [fcntl.fcntl(fd, fcntl.F_DUPFD, 256) for fd in passed]
        # As exec closes them: no lock and no socket of the daemon's is kept.
        os.closerange(3, 256)
        numbers = [str(os.dup(fd)) for fd in aside]
        os.closerange(256, 256 + len(aside))
        sampler.main(numbers)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve()
