"""What makes the crash tests' daemons quick, in the process that forks them.

Samplers are forked from the daemon instead of started by exec. Clocks that only make one wait (how often
leases are probed, how long a grant stands unheld) go faster.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import traceback
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

GRACE = 0.6  # seconds that a grant stands unheld


def prepare() -> None:
    from cachecd.daemon import loop
    from cachecd.executors import local
    from cachecd.policy import acquire, leases, policy

    acquire.GRACE = leases.GRACE = policy.GRACE = GRACE  # type: ignore[misc]
    loop._PROBE, loop._MEASURE = 0.02, 0.1
    local.subprocess = SimpleNamespace(Popen=_ForkedSampler, PIPE=subprocess.PIPE)  # type: ignore[assignment]


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
