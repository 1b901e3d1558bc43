"""The behaviour of a child process of the daemon that runs user code: it serves the daemon by two pipes,
dies with the daemon, and leaves no process behind. If memory runs out, it is killed before the trainer."""

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

_OOM_SCORE = 800  # of -1000 (never killed) to 1000 (first)
_NICE = 5  # a quarter of a processor that somebody else wants too
_PR_SET_PDEATHSIG = 1
# mallopt(3). glibc takes no higher threshold; buffers above it are mapped, and unmapped, one by one.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MAPPED, _KEPT = 32 << 20, 512 << 20


def serve_the_daemon() -> tuple[BinaryIO, BinaryIO]:
    """Returns the pipes from and to the daemon, out of reach of user code. Call it before the first thread
    starts.

    From then on this process ends with the thread that started it. If it leads its process group, the whole
    group ends with it. SIGINT and SIGTERM have no effect. The process should end itself when the first pipe
    ends.
    """
    # Even where EOF cannot be noticed, in native code that keeps the GIL.
    _die_with_the_parent()
    if os.getpgrp() == os.getpid():
        _start_guard()
    _die_before_the_trainer()
    for number in (signal.SIGINT, signal.SIGTERM):
        # A service manager signals the whole group: the daemon drains, and ends this process by EOF.
        # A handler, unlike SIG_IGN, is not inherited by what a transform may start.
        signal.signal(number, lambda *_: None)
    return _take_over_the_pipes()


def keep_freed_memory() -> None:
    """Makes this process keep freed memory: its size stays at its largest need.

    By default glibc returns buffers of some MiB to the kernel, and faults the next buffers in page by page.
    A sampler that fetches 64 MiB objects takes 1.07 s of CPU time a GB with this, and 1.32 s without. Has
    no effect without glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _MAPPED)
    mallopt(_M_TRIM_THRESHOLD, _KEPT)


def give_way() -> None:
    """Lowers the CPU priority of this process, its later threads and its children: they use the CPU time
    that others leave.

    They never interrupt a running process when they wake up (SCHED_BATCH), and get less CPU time when cores
    are scarce. Measured: a loop that took 600 MB/s and computed in Python on two cores, while samplers
    ingested 80 MB/s, was interrupted about 30 times in each step without this, and 3 times with it. A
    daemon that was started with a lower priority keeps it. Call it before the first thread starts.
    """
    with contextlib.suppress(OSError):  # a sandbox may refuse it
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    nice = max(os.getpriority(os.PRIO_PROCESS, 0), _NICE)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    # Where the kernel shares processors out by sessions, niceness counts within one alone, and a sampler
    # has one of its own (sched(7), "The autogroup feature"). Other kernels have no such file.
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
            file.write(f"{nice}")


def _die_before_the_trainer() -> None:
    """If the machine has no memory left, the kernel kills this process before the trainer: replacing this
    process costs nothing."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+") as file:
        score = max(int(file.read()), _OOM_SCORE)
        file.seek(0)
        file.write(f"{score}")


def _take_over_the_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Returns the two pipes, out of reach of other code: a `print` goes to stderr at once, because the
    process may be killed, and stdin is empty."""
    sys.stdout.flush()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    requests, replies = out_of_reach(os.dup(0)), out_of_reach(os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(requests, "rb"), os.fdopen(replies, "wb")


def _die_with_the_parent(number: int = signal.SIGKILL) -> None:
    """Makes the kernel send this process a signal when its parent dies.

    The signal is sent when the *thread* that started this process ends. So executors start samplers from
    the main thread.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _start_guard() -> None:
    """Forks a process that kills this process's group, itself included, when this process has ended. Then
    no process that a sampler started outlives it, even if the daemon, which also sees to this, is dead.

    The kernel ends a sampler with its daemon, but not the processes that a transform forked or started.
    These would keep temporary files open, whose disk space is not counted. This process must lead its
    group. The guard is a member of the group, so the group's number is not reused.
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
        _die_with_the_parent(signal.SIGCONT)
        # It holds nothing of what others wait for the end of.
        os.dup2(watched, 0)
        os.closerange(1, os.sysconf("SC_OPEN_MAX"))
        ended = select.poll()
        ended.register(0, select.POLLIN)
        ended.poll()
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(1)
