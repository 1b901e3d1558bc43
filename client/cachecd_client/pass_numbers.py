"""Numbers of a dataset's passes, on which processes agree that begin them without a word to each other.

A DataLoader's workers begin its passes, and the process that has the DataLoader is not told. So whoever
begins one appends that to a log in memory that all of them share, and what the log says is the number:
appends of a few bytes are atomic, and so all see one order.
"""

from __future__ import annotations

import fcntl
import os
import struct
import weakref
from multiprocessing import context, reduction
from typing import Any, NamedTuple

_ENTRY = struct.Struct("<qQq")  # what, the key of a pass, a number
_NEXT, _RESUME, _BEGIN, _READ = range(4)


class Begun(NamedTuple):
    """A pass: its number; whether it is the one that goes on where another left it; and whether its number
    follows that of a pass of which nobody has said that it was read."""

    number: int
    resumes: bool
    after_look: bool


class PassNumbers:
    """Shared with forked children, and with those that multiprocessing is to start with it.

    Any other copy counts on by itself.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._fd = os.memfd_create("cachecd-passes") if fd is None else fd
        fcntl.fcntl(self._fd, fcntl.F_SETFL, os.O_RDWR | os.O_APPEND)
        weakref.finalize(self, os.close, self._fd)

    def set_next(self, number: int, resumes: bool = False) -> None:
        """The next pass that anybody begins is of this number; those after it follow on."""
        self._append(_RESUME if resumes else _NEXT, 0, number)

    def begin(self, key: int, number: int | None = None) -> Begun:
        """The pass `key`, a number of 64 bits that no other pass has, of which each worker says it.

        `number`: that it has, if whoever begins it knows."""
        self._append(_BEGIN, key, -1 if number is None else number)
        following, resumes, looked = 0, False, 0
        begun: dict[int, Begun] = {}
        for what, each, told in _ENTRY.iter_unpack(self._all()):
            if what == _READ:
                looked = 0 if each == looked else looked
            elif what != _BEGIN:
                following, resumes, looked = told, what == _RESUME, 0
            elif each not in begun:
                known = told >= 0
                begun[each] = Begun(
                    told if known else following, resumes, not known and looked != 0
                )
                following, resumes, looked = begun[each].number + 1, False, each
        return begun[key]

    def read(self, key: int) -> None:
        """Of the pass `key` more was read than a look at it takes."""
        self._append(_READ, key, 0)

    def _append(self, what: int, key: int, number: int) -> None:
        os.write(self._fd, _ENTRY.pack(what, key, number))

    def _all(self) -> bytes:
        return os.pread(self._fd, os.fstat(self._fd).st_size // _ENTRY.size * _ENTRY.size, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        if context.get_spawning_popen() is None:
            return _copied, (self._all(),)
        return _shared, (reduction.DupFd(self._fd),)


def _copied(log: bytes) -> PassNumbers:
    copy = PassNumbers()
    os.write(copy._fd, log)
    return copy


def _shared(fd: Any) -> PassNumbers:
    return PassNumbers(fd.detach())
