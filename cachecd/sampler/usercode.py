"""Runs the user's own code: imports it by name, isolates it in this process, and blames it by its line."""

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
    """Makes later imports of this process search these folders first, in their order. Modules that are
    imported already stay."""
    # Not by PYTHONPATH: that comes after the working directory, and before what the sampler needs itself
    # to start, so that a `queue.py` in a project would end it.
    sys.path[:] = [*folders, *(place for place in sys.path if place not in folders)]


def imported(name: str, option: str, kind: str) -> Callable[..., Any]:
    """Imports the callable that `module:path` names. sampler.path, the working directory and PYTHONPATH of
    this process count. ConfigError names the key (`what`) and the expected `kind`."""
    module, _, path = name.partition(":")
    part_of: Any = None
    Guest.mark.enter(f"the import of {name}")
    try:
        part_of = importlib.import_module(module)
        for part in path.split("."):
            part_of = getattr(part_of, part)
    except (Exception, SystemExit) as error:  # importing runs the user's code
        message = "".join(traceback.format_exception_only(error)).strip()
        # Two modules of one name: the file tells which of them it is.
        file = getattr(part_of, "__file__", None)
        message += f" ({file})" if file else place_of(error)
        raise ConfigError(
            f"{option} {name}: cannot be imported in {os.getcwd()}: {message}"
        ) from error
    finally:
        Guest.mark.leave()
    if not callable(part_of):
        raise ConfigError(f"{option} {name}: found {type(part_of).__name__}, expected a {kind}")
    code: Callable[..., Any] = part_of
    return code


def blame(error: BaseException) -> str:
    """Returns the exception's message with the line of the user's code."""
    # Without addresses, equal faults have equal reasons, and `status` can count them.
    text = re.sub(r" at 0x[0-9a-f]+", "", "".join(traceback.format_exception_only(error)))
    return f"{text.strip()}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """Returns the innermost line of the user's code that the exception passed through, if any."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if is_users_own(f.filename)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def is_users_own(filename: str) -> bool:
    """Whether code of this file is the user's own: not of cachecd, the standard library or an installed
    package."""
    return not filename.startswith((*_OTHERS, "<")) and not _INSTALLED.search(filename)


class BlamedError(UnitError):
    """The user's code raised an error; the message has the error and the line."""


class Guest:
    """Calls the user's code, only in the process that made this object.

    If the code forks, a child that returns from the call ends there: otherwise it would continue this
    process's work on this process's files. After the call the umask, which decides who may read the shards,
    and the standard streams are restored. `mark` of the class notes which code this process runs.
    """

    mark: ClassVar = Heartbeat(bytearray(SIZE))

    def __init__(self) -> None:
        self._home = os.getpid()
        self._umask = os.umask(0o027)
        os.umask(self._umask)
        self._streams = sys.stdin, sys.stdout, sys.stderr
        _spare_stderr()

    def call(self, name: str, code: Callable[[], T]) -> T:
        """Returns the result of the code. BlamedError with its `name` if it raises: exit() skips the unit,
        and does not end the process. Errors of a store are raised unchanged."""
        self.mark.enter(name)
        try:
            return self._restored(code)
        except SourceError:
            raise
        except BaseException as error:
            raise BlamedError(f"{name} raised {blame(error)}") from error
        finally:
            self.mark.leave()

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
    """Ends a forked child as its interpreter would, without the cleanups of the parent."""
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
