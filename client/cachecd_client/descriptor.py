"""File descriptors that signal to other processes while they are open."""

from __future__ import annotations

import os
import threading
import weakref

# Locked while a descriptor is opened or closed, and while the process forks, so that the set has every
# descriptor that a child inherits.
_guard = threading.RLock()
_open: weakref.WeakSet[Descriptor] = weakref.WeakSet()


class Descriptor:
    """An open file descriptor that belongs to the process that opened it, and to no other process.

    A forked child closes its copy before it runs any Python code, and an executed program has no copy. So
    the signal to other processes, such as a lock or an open pipe, ends with this process, even if its
    children live longer.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        _open.add(self)

    @staticmethod
    def of_file(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> Descriptor:
        """Opens `path`, by default for reading. OSError as from os.open."""
        with _guard:
            return Descriptor(os.open(path, flags | os.O_CLOEXEC, 0o666))

    @staticmethod
    def of_pipe() -> tuple[int, Descriptor]:
        """Returns a new pipe: the reading end, which a child inherits, and the writing end."""
        with _guard:
            reading, writing = os.pipe2(os.O_CLOEXEC)
            return reading, Descriptor(writing)

    @property
    def closed(self) -> bool:
        """Whether this process has no open descriptor: it was closed, or this is a forked child."""
        return self._number < 0

    def fileno(self) -> int:
        """Returns the number of the descriptor; ValueError if it is closed."""
        if self._number < 0:
            raise ValueError("the descriptor is closed")
        return self._number

    def close(self) -> None:
        with _guard:
            number, self._number = self._number, -1
            if number >= 0:
                os.close(number)

    def __del__(self) -> None:
        self.close()


def _after_fork_in_child() -> None:
    try:
        for descriptor in list(_open):
            descriptor.close()
    finally:
        _guard.release()


os.register_at_fork(
    before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_after_fork_in_child
)
