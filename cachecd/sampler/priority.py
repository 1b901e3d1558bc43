"""The trainer's processes go first."""

from __future__ import annotations

import contextlib
import os

_NICE = 5  # a quarter of a processor that somebody else wants too


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
