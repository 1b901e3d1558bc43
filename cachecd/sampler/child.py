"""What the daemon starts, and where the user's code runs: it serves the daemon by two pipes, dies with it,
and leaves nothing behind. The trainer's processes go first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
from typing import BinaryIO, NoReturn

from cachecd.sampler.reach import out_of_reach

_OOM_SCORE = 800  # of -1000 (never killed) to 1000 (first)
_NICE = 5  # a quarter of a processor that somebody else wants too
_PR_SET_PDEATHSIG = 1
# mallopt(3). glibc takes no higher threshold; buffers above it are mapped, and unmapped, one by one.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MAPPED, _KEPT = 32 << 20, 512 << 20


def serve_the_daemon() -> tuple[BinaryIO, BinaryIO]:
    """The pipes from and to the daemon, out of reach of the user's code. Call it before there are threads.

    This process then ends with the thread that started it and, if it leads its group, all of that with
    it; SIGINT and SIGTERM have no effect. It should end itself when the first pipe does.
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
    """Has this process keep what it frees: it never grows beyond the most that it needed at once.

    Left to itself glibc gives buffers of some MiB back to the kernel and faults the next ones in page by
    page: of the CPU time of a sampler that fetches 64 MiB objects, 1.07 instead of 1.32 s a GB. Elsewhere
    than in glibc it does nothing.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _MAPPED)
    mallopt(_M_TRIM_THRESHOLD, _KEPT)


def give_way() -> None:
    """Has this process, its threads to come and what they start take the processor time that others leave.

    None of them interrupts whoever computes when it has something to do (SCHED_BATCH), and where there
    is not enough for all it gets less. A loop that took 600 MB/s and computed in Python on two cores
    while samplers ingested 80 MB/s was interrupted some 30 times in each of its steps, and 3 times with
    this. A daemon that was started with less gets no more. Call it before there are threads.
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
    """When the machine has no memory left: this process is replaced at no cost, the trainer is not."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+") as file:
        score = max(int(file.read()), _OOM_SCORE)
        file.seek(0)
        file.write(f"{score}")


def _take_over_the_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The two pipes, out of reach of other code: a `print` goes to stderr, and stdin is empty."""
    sys.stdout.flush()
    requests, replies = out_of_reach(os.dup(0)), out_of_reach(os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(requests, "rb"), os.fdopen(replies, "wb")


def _die_with_the_parent(number: int = signal.SIGKILL) -> None:
    """Has the kernel send this process that signal at its parent's death, whatever it is doing then.

    The signal comes when the *thread* ends that started this process: executors start samplers from
    the main thread.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _start_guard() -> None:
    """Forks a process that kills this process's group, itself included, as soon as this one has ended:
    nothing that a sampler has started outlives it, though the daemon, which sees to that, be dead too.

    The kernel ends a sampler with its daemon, but not what a transform has forked or started: those would
    go on, with the temporary files they have open, which take room that nobody counts. This process must
    lead its group. As a member the guard keeps the group's number from being given to others.
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
