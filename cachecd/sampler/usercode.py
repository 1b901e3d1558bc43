"""The user's own code: found by its name, run as a guest in this process, and blamed by its line."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from cachecd.errors import ConfigError, SourceError, UnitError

T = TypeVar("T")

# Where code lies that is not the user's.
_OTHERS = tuple(
    os.path.join(path, "")
    for path in (
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).parents[1]),
    )
)
_INSTALLED = re.compile("/(site|dist)-packages/")  # of another interpreter's, on this one's path


def search_first(folders: Sequence[str]) -> None:
    """Has this process look in these folders, in their order, before it looks anywhere else for what it
    imports from now on. What is imported already stays what it is."""
    # Not by PYTHONPATH: that comes after the working directory, and before what the sampler needs itself
    # to start, so that a `queue.py` in a project would end it.
    sys.path[:] = [*folders, *(place for place in sys.path if place not in folders)]


def imported(name: str, what: str, kind: str) -> Callable[..., Any]:
    """What `module:path` names, which must be callable. It is imported by this process: sampler.path, its
    working directory and PYTHONPATH count. ConfigError says of which `what` it is, and which `kind` of
    thing was expected."""
    module, _, path = name.partition(":")
    found: Any = None
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # importing runs the user's code
        told = "".join(traceback.format_exception_only(error)).strip()
        # Two modules of one name: the file tells which of them it is.
        file = getattr(found, "__file__", None)
        told += f" ({file})" if file else place_of(error)
        raise ConfigError(f"{what} {name}: cannot be imported in {os.getcwd()}: {told}") from error
    if not callable(found):
        raise ConfigError(f"{what} {name}: found {type(found).__name__}, expected a {kind}")
    code: Callable[..., Any] = found
    return code


def told(error: BaseException) -> str:
    """What was raised, and where in the user's code."""
    # Without addresses, equal faults have equal reasons, and `status` can count them.
    text = re.sub(r" at 0x[0-9a-f]+", "", "".join(traceback.format_exception_only(error)))
    return f"{text.strip()}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """The innermost line of the user's own code that the exception passed through, if any."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if is_users_own(f.filename)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def is_users_own(filename: str) -> bool:
    """Whether code of this file is the user's, and not ours, the library's or an installed package's."""
    return not filename.startswith((*_OTHERS, "<")) and not _INSTALLED.search(filename)


class BlamedError(UnitError):
    """The user's code raised something; the message says what and where."""


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

    def call(self, name: str, code: Callable[[], T]) -> T:
        """What the code returns. BlamedError with its `name` if it raises: exit() costs the unit, not the
        process. What a store has raised, and MemoryError, are raised as they are."""
        try:
            return self._restored(code)
        except (SourceError, MemoryError):
            raise
        except BaseException as error:
            raise BlamedError(f"{name} raised {told(error)}") from error

    def _restored(self, code: Callable[[], T]) -> T:
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
