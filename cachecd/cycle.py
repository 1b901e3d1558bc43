"""The order in which a source's units come: block by block, walked cyclically. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cachecd_client._core import Permutation


class Cycle:
    """A position in the cycle of all units that are listed.

    `blocks` are the ends of the blocks: each is permuted by itself, after those before it, by a keyed
    permutation, which takes no memory per unit. `passes` are the cycles that are done. While there is
    `more_to_come` the cycle has no end yet: then the position stays at the end of what is listed.
    """

    def __init__(self, seed: int) -> None:
        self.blocks: list[int] = []
        self.passes = 0
        self.position = 0
        self.more_to_come = False
        self.target = 0
        """The cursor to go on from, as long as that is not listed yet; else 0."""
        self.walked = [0, 0, -1]
        """Which positions were walked over: from where the walk began up to a second position, and, once it
        has turned, from 0 up to a third."""
        self._seed = seed
        self._keys: list[int] = []

    @property
    def num_units(self) -> int:
        return self.blocks[-1] if self.blocks else 0

    @property
    def left(self) -> int:
        """How many units there are to come: a cycle, or up to the end of what is listed."""
        return self.num_units - (self.position if self.more_to_come else 0)

    @property
    def share(self) -> float:
        """Of this pass, 0..1."""
        return self.position / self.num_units if self.num_units else 0.0

    @property
    def cursor(self) -> int:
        """The position, counted over all passes; where it is to go on from, if that is not listed yet."""
        return max(self.passes * self.num_units + self.position, self.target)

    def add_block(self, end: int) -> None:
        self._keys.append((self._seed + 0x9E3779B97F4A7C15 * len(self.blocks)) % (1 << 64))
        self.blocks.append(end)
        self.catch_up()

    def ahead(self, position: int, count: int) -> NDArray[np.uint64]:
        """Up to `count` units from a position on, within one block; past the end it is the next cycle."""
        position %= self.num_units
        nth = bisect_right(self.blocks, position)
        begin, end = self.blocks[nth - 1] if nth else 0, self.blocks[nth]
        first, count = position - begin, min(count, end - position)
        return Permutation(end - begin, self._keys[nth]).take(first, count) + np.uint64(begin)

    def move_to(self, position: int) -> None:
        """To a position that is at most one cycle further."""
        begun, reached, again = self.walked
        if again >= 0:
            self.walked[2] = max(again, min(position, self.num_units))
        else:
            self.walked[1] = max(reached, min(position, self.num_units))
        if position >= self.num_units > 0 and not self.more_to_come:
            position -= self.num_units
            self.passes += 1
            self.walked[2] = max(self.walked[2], position)
            if not begun:  # all that there is yet was walked over: there is but one stretch
                self.walked = [0, max(self.walked[1:]), -1]
        self.position = position

    def walked_over(self) -> Iterator[NDArray[np.uint64]]:
        """The units of the positions that were walked over."""
        begun, reached, again = self.walked
        for first, end in ((begun, reached), (0, again)):
            for begin, stop in zip([0, *self.blocks], self.blocks, strict=False):
                low, high = max(begin, first), min(stop, end)
                if (low, high) == (begin, stop):
                    yield np.arange(begin, stop, dtype=np.uint64)
                elif low < high:
                    yield self.ahead(low, high - low)

    def skip_to(self, cursor: int) -> None:
        """To where the walk was when its cursor was this, modulo the units listed; while that is not listed
        yet, at the end of what is."""
        self.target = cursor
        self.walked = [0, 0, -1]
        self.catch_up()

    def catch_up(self) -> None:
        """More is listed, or there will be no more: goes as far toward the target as that allows."""
        if not self.target:
            return
        if self.more_to_come:
            self.position = min(self.target, self.num_units)
            if self.position < self.num_units:
                self.target = 0
        elif self.num_units:
            self.position = self.target % self.num_units  # of whatever pass: all have one order
            self.target = 0
        self.walked = [self.position, self.position, -1]
