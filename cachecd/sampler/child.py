"""Prepares a child process of the daemon that runs user code. The process serves the daemon over two pipes,
ends with the daemon, and leaves no process behind. If memory runs out, it is killed before the trainer."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import select
import signal
import sys
from typing import BinaryIO, NoReturn

from cachecd.sampler.descriptors import out_of_reach

_OOM_SCORE = 800  # from -1000 (never killed) to 1000 (killed first)
_NICE = 5  # leaves this process a quarter of a processor that another process also needs
_PR_SET_PDEATHSIG = 1
# See mallopt(3). glibc accepts no higher threshold. Each larger buffer is mapped and unmapped separately.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MAPPED, _KEPT = 32 << 20, 512 << 20


def serve_the_daemon() -> tuple[BinaryIO, BinaryIO]:
    """Returns the pipes from and to the daemon, out of reach of user code. Call it before the first thread
    starts.

    After this call, the process ends when the thread that started it ends. If the process leads its process
    group, the whole group ends with it. SIGINT and SIGTERM have no effect, stdin is empty, and a `print`
    writes to stderr at once. The caller should end the process at EOF of the first pipe.
    """
    # The signal works even if native code keeps the GIL, so that no thread can notice EOF.
    _signal_when_parent_dies(signal.SIGKILL)
    if os.getpgrp() == os.getpid():
        _start_guard()
    # Replacing this process costs nothing, so the kernel should kill it before the trainer.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+") as file:
        score = max(int(file.read()), _OOM_SCORE)
        file.seek(0)
        file.write(f"{score}")
    for number in (signal.SIGINT, signal.SIGTERM):
        # A service manager signals the whole group. The daemon drains, and then ends this process by EOF.
        # Programs that a transform starts would inherit SIG_IGN, but they do not inherit a handler.
        signal.signal(number, lambda *_: None)
    sys.stdout.flush()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # the process may be killed at any time
    requests, replies = out_of_reach(os.dup(0)), out_of_reach(os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(requests, "rb"), os.fdopen(replies, "wb")


def keep_freed_memory() -> None:
    """Makes this process keep freed memory, so that its size stays at its largest need. No effect without
    glibc.

    By default, glibc returns buffers of some MiB to the kernel. The kernel then maps the pages of the next
    buffer one by one. A sampler that fetches objects of 64 MiB takes 1.07 s of CPU time per GB with this
    call, and 1.32 s without it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _MAPPED)
    mallopt(_M_TRIM_THRESHOLD, _KEPT)


def lower_priority() -> None:
    """Lowers the CPU priority of this process, its later threads and its children. A priority that is lower
    already stays. Call it before the first thread starts.

    These threads never interrupt a running process when they wake up (SCHED_BATCH), and get less CPU time
    when cores are scarce. Measured on two cores, while samplers ingested 80 MB/s: a loop that read 600 MB/s
    and computed in Python was interrupted 3 times in each step. Without this call, it was interrupted about
    30 times.
    """
    with contextlib.suppress(OSError):  # a sandbox may refuse it
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    nice = max(os.getpriority(os.PRIO_PROCESS, 0), _NICE)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    # Some kernels divide CPU time among sessions first, and use niceness only inside a session (sched(7),
    # "The autogroup feature"). A sampler leads a session. Other kernels do not have this file.
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
            file.write(f"{nice}")


def _signal_when_parent_dies(number: int) -> None:
    """Makes the kernel send this process a signal when the *thread* that started it ends. Therefore
    executors start samplers from the main thread."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _start_guard() -> None:
    """Forks a guard: a process that kills this process's group, and itself, when this process has ended. So
    no process that a sampler started outlives the sampler, even if the daemon is dead. This process must
    lead its group.

    The kernel ends a sampler with its daemon, but not the processes that a transform forked or started.
    These processes would keep temporary files open, whose disk space is not counted. The guard is a member
    of the group, so the group's number is not reused.
    """
    watched = os.pidfd_open(os.getpid())
    if not os.fork():
        _guard(watched)
    os.close(watched)


def _guard(watched: int) -> NoReturn:
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # If the whole group was stopped, the guard continues when this process dies.
        _signal_when_parent_dies(signal.SIGCONT)
        # The guard keeps no pipe open, because other processes may wait for EOF.
        os.dup2(watched, 0)
        os.closerange(1, os.sysconf("SC_OPEN_MAX"))
        ended = select.poll()
        ended.register(0, select.POLLIN)
        ended.poll()
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(1)
