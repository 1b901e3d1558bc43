"""File descriptors that signal to other processes while they are open."""

from __future__ import annotations

import os
import threading
import weakref

# Held while a descriptor is opened or closed and while the process forks, so that no child has a descriptor
# that is missing in the set.
_guard = threading.RLock()
_open: weakref.WeakSet[Descriptor] = weakref.WeakSet()


class Descriptor:
    """An open file descriptor that belongs to the process that opened it, and to no other process.

    The copy of a forked child is closed before the child runs any Python code, and an executed program has
    no copy. So the signal to other processes (a lock is held, the other end of a pipe is open) ends with
    this process, whatever its children do.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        _open.add(self)

    @staticmethod
    def of_file(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> Descriptor:
        """Opens `path`, for reading unless `flags` say otherwise. OSError as from os.open."""
        with _guard:
            return Descriptor(os.open(path, flags | os.O_CLOEXEC, 0o666))

    @staticmethod
    def of_pipe() -> tuple[int, Descriptor]:
        """A new pipe: the plain reading end, for a child to inherit, and the writing end."""
        with _guard:
            reading, writing = os.pipe2(os.O_CLOEXEC)
            return reading, Descriptor(writing)

    @property
    def closed(self) -> bool:
        """Whether this process does not have it: it was closed here, or inherited over a fork."""
        return self._number < 0

    def fileno(self) -> int:
        """The number; ValueError if it is closed."""
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
