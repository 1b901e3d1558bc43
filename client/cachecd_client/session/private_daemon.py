"""A daemon that belongs to this process alone, and never outlives it."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from cachecd_client.descriptor import Descriptor
from cachecd_client.errors import CallerError, DaemonUnreachableError
from cachecd_client.launcher import local_ranks
from cachecd_client.protocol import AskStatus
from cachecd_client.sockets import MAX_PATH, path_length
from cachecd_client.transport import Transport

_START_POLL = 0.1
_DRAIN = 15.0  # seconds from SIGTERM to SIGKILL; the daemon drains within 10
_LONGEST_FOLDER = MAX_PATH - len("/cachecd-0123456789abcdef/cachecd.sock")


class PrivateDaemon:
    """``cachecd run CONFIG`` as a child process, on a socket in a folder of its own. It ends when this
    process ends in any way: it reads a pipe whose other end is open in this process only, and the kernel
    closes that end. Its output goes to the stderr of this process."""

    def __init__(self, config: str | os.PathLike[str]) -> None:
        """Starts it; returns before it answers. CallerError if it cannot be started from here."""
        self.config = Path(config)
        if not self.config.is_file():
            raise CallerError(f"{self.config}: this configuration file does not exist")
        if local_ranks()[1] > 1:
            raise CallerError(
                f"{self.config}: several ranks on this node cannot each start a daemon for one cache; run "
                f"the launcher under one daemon: cachecd run {self.config} -- torchrun ..."
            )
        if importlib.util.find_spec("cachecd") is None:
            raise CallerError(
                f"{self.config}: only cachecd-client is installed, and starting a daemon needs cachecd: "
                "pip install cachecd"
            )
        self._folder = _unused_folder()
        self._owner = os.getpid()
        self.endpoint = f"ipc://{self._folder}/cachecd.sock"
        lifeline, self._lifeline = Descriptor.of_pipe()
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "cachecd", "run", str(self.config)),
                    *("--lifeline", str(lifeline)),
                ],
                env={**os.environ, "CACHECD_SERVER__ENDPOINT": self.endpoint},
                stdin=subprocess.DEVNULL,
                stdout=2,  # the trainer's stdout is the trainer's
                pass_fds=[lifeline],
                # Ctrl-C is for the trainer, which may still read its epoch to the end.
                process_group=0,
            )
        finally:
            os.close(lifeline)

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raises if it has ended: CallerError for exit 2, else DaemonUnreachableError."""
        code = self._process.poll()
        if code is None:
            return
        if code == 2:
            raise CallerError(
                f"the daemon refused {self.config} (exit code 2); the reason is on stderr, above"
            )
        how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        raise DaemonUnreachableError(
            f"the daemon started for {self.config} ended {how}; the reason is on stderr, above"
        )

    def await_answer(self, transport: Transport, timeout: float) -> None:
        """Returns when it has answered; DaemonUnreachableError if it does not within `timeout` seconds,
        and as `check`."""
        deadline = time.monotonic() + timeout
        while True:
            self.check()
            try:
                transport.ask(AskStatus(uuid.uuid4().hex), _START_POLL)
                return
            except DaemonUnreachableError as error:
                if time.monotonic() >= deadline:
                    raise DaemonUnreachableError(
                        f"the daemon started for {self.config} (process {self.pid}) did not answer "
                        f"within {timeout:.3g} s and was ended; its messages are on stderr, above"
                    ) from error

    def close(self) -> None:
        """SIGTERM, then waits for its drain. Idempotent. Does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        self._process.terminate()
        try:
            self._process.wait(_DRAIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            self._lifeline.close()
            # The daemon removes it, unless it was killed.
            shutil.rmtree(self._folder, ignore_errors=True)


def _unused_folder() -> str:
    """An unused path for the folder of the socket; the daemon makes the folder, and removes it."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    if path_length(base) > _LONGEST_FOLDER or not os.access(base, os.W_OK):
        base = "/tmp"
    return f"{base}/cachecd-{secrets.token_hex(8)}"
