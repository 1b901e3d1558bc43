"""The user's code as a guest in the sampler process: whatever it does to the process, what comes after
it finds the process as it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")


class Guest:
    """Calls the user's code in the process that made this, and nowhere else.

    A child that the code forks, and that comes back out of it, ends there: it would go on with this
    process's work on this process's files. The umask is put back, which decides who may read the
    shards, and so are the standard streams: what comes next may print.
    """

    def __init__(self) -> None:
        self._home = os.getpid()
        self._umask = os.umask(0o027)
        os.umask(self._umask)
        self._streams = sys.stdin, sys.stdout, sys.stderr
        _spare_stderr()

    def call(self, code: Callable[[], T]) -> T:
        """What the code returns, or raises: anything."""
        try:
            return code()
        finally:
            if os.getpid() != self._home:
                _leave(sys.exception())
            os.umask(self._umask)
            self._restore_streams()

    def _restore_streams(self) -> None:
        sys.stdin, sys.stdout, sys.stderr = self._streams
        for number in range(3):
            try:
                os.fstat(number)
            except OSError:
                if number:
                    os.dup2(_spare_stderr(), number)
                else:
                    os.open(os.devnull, os.O_RDONLY)  # the lowest number is free


@functools.cache
def _spare_stderr() -> int:
    return fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 3)


def _leave(error: BaseException | None) -> NoReturn:
    """Ends a forked child as its interpreter would have ended it, but without what is the parent's."""
    code: object = 0
    if isinstance(error, SystemExit):
        code = error.code
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)
