"""Which epoch an iterator that follows others begins with."""

from __future__ import annotations

import threading


class Numbering:
    """Counts the epochs of one job, dataset and rank over all iterators that this session makes of them.

    An iterator that ends within a set leaves the set's number to the next one, once: a framework that
    looks at a first batch before it trains spends no epoch so, and yet a run of iterators that each
    read a part gets on. Threads may share it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._iterators = 0
        self._latest = -1
        self._spent = True  # whether the next iterator begins after the latest number

    def begin(self, start: int) -> tuple[int, int]:
        """(number, ordinal): the first epoch of a new iterator, and how many iterators came before.

        `start`: the least number.
        """
        with self._lock:
            number = max(start, self._latest + self._spent)
            self._spent = number == self._latest
            self._latest = number
            self._iterators += 1
            return number, self._iterators - 1

    def reached(self, number: int) -> None:
        """An iterator begins this epoch because it has finished the one before."""
        with self._lock:
            if number > self._latest:
                self._latest, self._spent = number, False

    def finished(self, number: int) -> None:
        """An iterator has finished this epoch, its last."""
        with self._lock:
            self._spent |= number == self._latest
