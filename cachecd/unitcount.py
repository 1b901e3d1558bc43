"""Which units of a source are spoken for: held by shards, or set aside. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Units = Sequence[int] | NDArray[np.int64] | NDArray[np.uint64]


class UnitCount:
    """For each unit how many hold it (live shards, open assignments, what is left over), and whether
    it was set aside. A unit is *free* if nobody holds it and it was not set aside.

    How many are free is kept, not counted: a source may have tens of millions.
    """

    def __init__(self) -> None:
        self._holders: NDArray[np.int32] = np.zeros(0, np.int32)
        self._aside: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.num_free = 0
        self.num_aside = 0

    def extend(self, count: int) -> None:
        """There are `count` more, all free."""
        self._holders = np.concatenate([self._holders, np.zeros(count, np.int32)])
        self._aside = np.concatenate([self._aside, np.zeros(count, np.bool_)])
        self.num_free += count

    def hold(self, units: Units) -> None:
        """One more holds each of these; a unit named twice is held twice."""
        self._add(units, 1)

    def release(self, units: Units) -> None:
        """One less holds each of these."""
        self._add(units, -1)

    def set_aside(self, units: Units) -> None:
        """These are not free, until they are taken back."""
        new = self._distinct(units)
        new = new[~self._aside[new]]
        self.num_free -= int(np.count_nonzero(self._holders[new] == 0))
        self.num_aside += len(new)
        self._aside[new] = True

    def take_back(self, units: Units) -> None:
        """These are no longer set aside."""
        old = self._distinct(units)
        old = old[self._aside[old]]
        self.num_free += int(np.count_nonzero(self._holders[old] == 0))
        self.num_aside -= len(old)
        self._aside[old] = False

    def free(self, units: Units) -> NDArray[np.bool_]:
        """Which of these are free."""
        at = np.asarray(units, np.int64)
        found: NDArray[np.bool_] = (self._holders[at] == 0) & ~self._aside[at]
        return found

    def all_free(self) -> NDArray[np.uint64]:
        """The numbers of all that are free."""
        return np.flatnonzero((self._holders == 0) & ~self._aside).astype(np.uint64)

    def _add(self, units: Units, by: int) -> None:
        distinct = self._distinct(units)
        before = np.count_nonzero(self.free(distinct))
        np.add.at(self._holders, np.asarray(units, np.int64), by)
        self.num_free += int(np.count_nonzero(self.free(distinct)) - before)

    @staticmethod
    def _distinct(units: Units) -> NDArray[np.int64]:
        return np.unique(np.asarray(units, np.int64))
