"""Sets of unit numbers, one bit a unit. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Marks:
    """A set of numbers from 0 on, in as many bits as the greatest of them."""

    def __init__(self) -> None:
        self._bits = np.zeros(0, np.uint8)

    def add(self, numbers: NDArray[np.int64]) -> None:
        self._make_room(numbers)
        np.bitwise_or.at(self._bits, numbers >> 3, _mask(numbers))

    def toggle(self, numbers: NDArray[np.int64]) -> None:
        """Adds those that it does not have, and takes out the others; each is named once."""
        self._make_room(numbers)
        np.bitwise_xor.at(self._bits, numbers >> 3, _mask(numbers))

    def numbers(self) -> NDArray[np.int64]:
        """All of them, ascending."""
        return np.flatnonzero(np.unpackbits(self._bits, bitorder="little"))

    def changes(self, seen: Marks, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of the numbers below `end`: those that are in neither set, and those that are in both."""
        mine, theirs = self._padded(end), seen._padded(end)
        neither = np.flatnonzero(np.unpackbits(~(mine | theirs), bitorder="little")[:end])
        both = np.flatnonzero(np.unpackbits(mine & theirs, bitorder="little")[:end])
        return neither, both

    def _padded(self, end: int) -> NDArray[np.uint8]:
        length = -(-end // 8)
        return np.append(self._bits[:length], np.zeros(max(0, length - len(self._bits)), np.uint8))

    def _make_room(self, numbers: NDArray[np.int64]) -> None:
        missing = int(numbers.max(initial=-1)) // 8 + 1 - len(self._bits)
        if missing > 0:
            missing = max(missing, len(self._bits) // 4)  # to grow cheaply
            self._bits = np.append(self._bits, np.zeros(missing, np.uint8))


def _mask(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    return np.uint8(1) << (numbers & 7).astype(np.uint8)
