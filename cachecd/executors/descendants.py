"""Finds the processes that a sampler process started and left behind, by an environment variable that
descendants inherit.

A process group misses a child that made its own session. Parentage misses a child whose parent died.
"""

from __future__ import annotations

import contextlib
import os
import signal

MARK = "_CACHECD_SAMPLER"
_ROUNDS = 10  # a child may start another while it is looked for


def mark_of(owner: str, number: int) -> str:
    """Returns the value of MARK for an owner's process. The owner's name must not contain "//"."""
    return f"{owner}//{number}"


def end_marked(owner: str, number: int | None = None) -> None:
    """Kills every process with the mark of the owner's process `number`, or of any process of the owner."""
    prefix = os.fsencode(f"{MARK}={owner}//")
    wanted = None if number is None else b"%d" % number
    ended: set[int] = set()
    for _ in range(_ROUNDS):
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        marked = {pid for pid in pids - ended - {os.getpid()} if _end(pid, prefix, wanted)}
        if not marked:
            return
        ended |= marked


def _end(pid: int, prefix: bytes, wanted: bytes | None) -> bool:
    with contextlib.suppress(OSError):  # it is gone, or somebody else's
        if not _is_marked(pid, prefix, wanted):
            return False
        handle = os.pidfd_open(pid)
        try:
            if _is_marked(pid, prefix, wanted):  # and not another that has its number now
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False


def _is_marked(pid: int, prefix: bytes, wanted: bytes | None) -> bool:
    """Whether the process has the mark. A dead process that is not reaped has no environment."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        variables = file.read().split(b"\0")
    numbers = [v.removeprefix(prefix) for v in variables if v.startswith(prefix)]
    return any(n == wanted or (wanted is None and n.isdigit()) for n in numbers)
