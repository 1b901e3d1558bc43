"""Daemons that start within milliseconds: forked from a process that has imported all they need.

    with Hatchery(disk.environ) as hatchery:
        daemon = hatchery.start(config, log)
        daemon.kill(); daemon.wait()

What runs is `cachecd run CONFIG`, line for line; but imports, most of a start's second, are done, and
samplers are forked from the daemon instead of started by exec. Clocks that only make one wait (how often
leases are probed, how long a grant stands unheld) go faster. Everything on disk, every process, signal and
lock is real.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

REPOSITORY = Path(__file__).parents[2]
GRACE = 0.6  # seconds that a grant stands unheld


class Hatched:
    """A daemon that was forked for us, by its process id."""

    def __init__(self, hatchery: Hatchery, pid: int) -> None:
        self.pid = pid
        self._hatchery = hatchery
        self._handle = os.pidfd_open(pid)
        self.status: int | None = None
        """How it ended, as Popen's returncode, once `wait` has returned True."""

    def signal(self, number: int) -> None:
        """Sends it, if there is still somebody to get it."""
        if self.status is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    @property
    def ended(self) -> bool:
        return self.wait(0)

    def wait(self, seconds: float = 30.0) -> bool:
        """Whether it has ended, within so many seconds."""
        if self.status is None:
            if not select.select([self._handle], [], [], seconds)[0]:
                return False
            self.status = self._hatchery.reap(self.pid)
            os.close(self._handle)
        return True


class Hatchery:
    """The process that forks daemons, with these variables; a context manager."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.hatchery"],
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

    def start(self, config: Path, log: Path, *, offline: bool = False) -> Hatched:
        """Starts a daemon; it does not answer yet."""
        asked = {"config": str(config), "log": str(log), "offline": offline}
        return Hatched(self, self._ask(asked))

    def reap(self, pid: int) -> int:
        """How a daemon that has ended did."""
        return os.waitstatus_to_exitcode(self._ask({"reap": pid}))

    def _ask(self, request: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


# --- in the process that forks


def _serve() -> None:
    # All that a daemon and a sampler of local files import, before any thread is started.
    import cachecd.cli.run
    import cachecd.sampler.sources.files
    import cachecd.sampler.sources.tfrecord
    import cachecd.sampler.stores.local
    import cachecd.service  # noqa: F401

    _hurry()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        if "reap" in request:
            _, answer = os.waitpid(request["reap"], 0)
        else:
            answer = os.fork()
            if not answer:
                _be_a_daemon(Path(request["config"]), request["log"], request["offline"])
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _hurry() -> None:
    from cachecd import daemon, grant, state
    from cachecd.executors import local

    grant.GRACE = state.GRACE = GRACE
    daemon._PROBE_EVERY = 0.02
    daemon._MEASURE_EVERY = 0.1
    local.subprocess = SimpleNamespace(Popen=_ForkedSampler, PIPE=subprocess.PIPE)  # type: ignore[assignment]


def _be_a_daemon(config: Path, log: str, offline: bool) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        to = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for number, fd in enumerate((nothing, to, to)):
            os.dup2(fd, number)
        os.closerange(3, 256)
        from cachecd.cli import run

        code = run.command(config, None, offline, None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class _ForkedSampler:
    """What the executor needs of Popen, for `python -m cachecd.sampler PROGRESS_FD LINK_FD`."""

    def __init__(self, command: Sequence[str], *, pass_fds: tuple[int, int], **_: Any) -> None:
        assert command[1:3] == ["-m", "cachecd.sampler"], command
        requests, self._give = os.pipe()
        self._take, replies = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            self._be_a_sampler(requests, replies, *pass_fds)
        os.close(requests)
        os.close(replies)
        self.stdin = os.fdopen(self._give, "wb", 0)
        self.stdout = os.fdopen(self._take, "rb", 0)

    def wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    @staticmethod
    def _be_a_sampler(requests: int, replies: int, *passed: int) -> NoReturn:
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            os.dup2(requests, 0)
            os.dup2(replies, 1)
            # Above all others first: neither may take the other's new number.
            aside = [fcntl.fcntl(fd, fcntl.F_DUPFD, 256) for fd in passed]
            # As exec closes them: no lock and no socket of the daemon's is kept.
            os.closerange(3, 256)
            numbers = [str(os.dup(fd)) for fd in aside]
            os.closerange(256, 256 + len(aside))
            from cachecd.sampler import __main__ as sampler

            sampler.main(numbers)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


if __name__ == "__main__":
    _serve()
