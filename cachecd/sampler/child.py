"""What the daemon starts, and where the user's code runs: it serves the daemon by two pipes, dies with it,
and leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import BinaryIO

from cachecd.sampler.guard import die_with_the_parent, start_guard
from cachecd.sampler.reach import out_of_reach

_OOM_SCORE = 800  # of -1000 (never killed) to 1000 (first)


def serve_the_daemon() -> tuple[BinaryIO, BinaryIO]:
    """The pipes from and to the daemon, out of reach of the user's code. Call it before there are threads.

    This process then ends with the thread that started it and, if it leads its group, all of that with
    it; SIGINT and SIGTERM have no effect. It should end itself when the first pipe does.
    """
    # Even where EOF cannot be noticed, in native code that keeps the GIL.
    die_with_the_parent()
    if os.getpgrp() == os.getpid():
        start_guard()
    _die_before_the_trainer()
    for number in (signal.SIGINT, signal.SIGTERM):
        # A service manager signals the whole group: the daemon drains, and ends this process by EOF.
        # A handler, unlike SIG_IGN, is not inherited by what a transform may start.
        signal.signal(number, lambda *_: None)
    return _take_over_the_pipes()


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
