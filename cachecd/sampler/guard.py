"""Nothing that a sampler has started outlives it, though the daemon, which sees to that, be dead too.

The kernel ends a sampler with its daemon (PR_SET_PDEATHSIG), but not what a transform has forked or
started: those would go on, with the temporary files they have open, which take room that nobody counts.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def die_with_the_parent(number: int = signal.SIGKILL) -> None:
    """Has the kernel send this process that signal at its parent's death, whatever it is doing then.

    The signal comes when the *thread* ends that started this process: executors start samplers from
    the main thread.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def start_guard() -> None:
    """Forks a process that kills this process's group, itself included, as soon as this one has ended.

    This process must lead its group. As a member the guard keeps the group's number from being given
    to others. Call it before there are threads.
    """
    watched = os.pidfd_open(os.getpid())
    if not os.fork():
        _guard(watched)
    os.close(watched)


def _guard(watched: int) -> NoReturn:
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # One that was stopped with the rest of its group goes on.
        die_with_the_parent(signal.SIGCONT)
        # It holds nothing of what others wait for the end of.
        os.dup2(watched, 0)
        os.closerange(1, os.sysconf("SC_OPEN_MAX"))
        ended = select.poll()
        ended.register(0, select.POLLIN)
        ended.poll()
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(1)
