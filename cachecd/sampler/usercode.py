"""Imports and runs user code, protects this process from it, and finds the line at fault."""

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
from typing import Any, ClassVar, NoReturn, TypeVar

from cachecd.errors import ConfigError, SourceError, UnitError
from cachecd.sampler.heartbeat import SIZE, Heartbeat

T = TypeVar("T")

# Folders with code that is not the user's.
_OTHERS = tuple(
    os.path.join(path, "")
    for path in (
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).parents[1]),
    )
)
_INSTALLED = re.compile("/(site|dist)-packages/")  # also of another interpreter


def search_first(folders: Sequence[str]) -> None:
    """Makes later imports of this process search these folders first, in this order."""
    # PYTHONPATH comes after the working directory, and before the modules that the sampler needs to start:
    # a `queue.py` in a project would end the sampler.
    sys.path[:] = [*folders, *(place for place in sys.path if place not in folders)]


def imported(name: str, option: str, kind: str) -> Callable[..., Any]:
    """Imports the callable that `module:path` names. Searches sampler.path, the working directory and
    PYTHONPATH of this process. ConfigError names the `option` and the expected `kind`."""
    module, _, path = name.partition(":")
    target: Any = None
    Guest.mark.enter(f"the import of {name}")
    try:
        target = importlib.import_module(module)
        for part in path.split("."):
            target = getattr(target, part)
    except (Exception, SystemExit) as error:  # importing runs the user's code
        message = "".join(traceback.format_exception_only(error)).strip()
        # If two modules have the same name, the file shows which module was imported.
        file = getattr(target, "__file__", None)
        message += f" ({file})" if file else place_of(error)
        raise ConfigError(
            f"{option} {name}: cannot be imported in {os.getcwd()}: {message}"
        ) from error
    finally:
        Guest.mark.leave()
    if not callable(target):
        raise ConfigError(f"{option} {name}: found {type(target).__name__}, expected a {kind}")
    code: Callable[..., Any] = target
    return code


def blame(error: BaseException) -> str:
    """Returns the exception's message, with the line of the user's code."""
    # Addresses are removed, so that equal faults have equal reasons, and `status` can count them.
    text = re.sub(r" at 0x[0-9a-f]+", "", "".join(traceback.format_exception_only(error)))
    return f"{text.strip()}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """Returns the innermost line of user code in the traceback, as " (FILE:LINE)"; "" if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if is_users_own(f.filename)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def is_users_own(filename: str) -> bool:
    """Whether this file belongs to the user, and not to cachecd, the standard library or an installed
    package."""
    return not filename.startswith((*_OTHERS, "<")) and not _INSTALLED.search(filename)


class BlamedError(UnitError):
    """The user's code raised an error; the message has the error and the line."""


class Guest:
    """Calls the user's code, only in the process that made this object.

    If the code forks, a child that returns from the call is ended at once. Otherwise the child would
    continue this process's work on its files. Each call restores the standard streams, and the umask, which
    determines who may read the shards. `mark` of the class notes which code this process runs.
    """

    mark: ClassVar = Heartbeat(bytearray(SIZE))

    def __init__(self) -> None:
        self._home = os.getpid()
        self._umask = os.umask(0o027)
        os.umask(self._umask)
        self._streams = sys.stdin, sys.stdout, sys.stderr
        _spare_stderr()

    def call(self, name: str, code: Callable[[], T]) -> T:
        """Returns the result of the code. If the code raises, or calls exit(), raises BlamedError with its
        `name`. Raises errors of a store unchanged."""
        self.mark.enter(name)
        try:
            try:
                return code()
            finally:
                if os.getpid() != self._home:
                    _leave(sys.exception())
                os.umask(self._umask)
                self._restore_streams()
        except SourceError:
            raise
        except BaseException as error:
            raise BlamedError(f"{name} raised {blame(error)}") from error
        finally:
            self.mark.leave()

    def _restore_streams(self) -> None:
        sys.stdin, sys.stdout, sys.stderr = self._streams
        for number in range(3):
            try:
                os.fstat(number)
            except OSError:
                if number:
                    os.dup2(_spare_stderr(), number)
                else:
                    os.open(os.devnull, os.O_RDONLY)  # gets number 0, the lowest free number


@functools.cache
def _spare_stderr() -> int:
    return fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 3)


def _leave(error: BaseException | None) -> NoReturn:
    """Ends a forked child with the status of its interpreter, but without the parent's cleanups."""
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
