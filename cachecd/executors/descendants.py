"""Kills the descendants of a worker process, found by an environment variable that they inherit.

A search by process group misses a child in another session. A search by parent misses a child whose parent
died.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal

MARK = "_CACHECD_SAMPLER"
_ROUNDS = 10  # a process may start another one during the search


def mark_of(owner: str, number: int) -> str:
    """Returns the value of MARK for an owner's process. The owner's name must not contain "//"."""
    return f"{owner}//{number}"


def end_marked(owner: str, number: int | None = None) -> None:
    """Kills every process with the mark of the owner's process `number`, or of any process of the owner."""
    digits = "[0-9]+" if number is None else str(number)
    mark = re.compile(os.fsencode(f"{MARK}={re.escape(owner)}//{digits}"))
    ended: set[int] = set()
    for _ in range(_ROUNDS):
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        marked = {pid for pid in pids - ended - {os.getpid()} if _end(pid, mark)}
        if not marked:
            return
        ended |= marked


def _end(pid: int, mark: re.Pattern[bytes]) -> bool:
    with contextlib.suppress(OSError):  # the process has ended, or another user owns it
        if not _is_marked(pid, mark):
            return False
        handle = os.pidfd_open(pid)
        try:
            if _is_marked(pid, mark):  # the number may belong to another process now
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False


def _is_marked(pid: int, mark: re.Pattern[bytes]) -> bool:
    """Whether the process has the mark. The environment of a dead process is empty."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        return any(map(mark.fullmatch, file.read().split(b"\0")))
