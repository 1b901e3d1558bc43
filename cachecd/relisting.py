"""What a listing of a source that was listed before shows: what is new, rewritten, gone, or back.

It takes one bit a unit, and of the index, the blocks that its pages lie in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from cachecd.index import Index
from cachecd.marks import Marks
from cachecd.model import ObjectInfo
from cachecd.sourceindex import SourceIndex

# Which of these units live shards hold something of, or somebody has in hand.
Holds = Callable[[Sequence[int]], Iterable[int]]


class Relisting:
    """One listing, from its beginning to its end, over as many attempts as it takes."""

    def __init__(self, index: Index | SourceIndex, holds: Holds) -> None:
        self._index = index
        self._holds = holds
        self._known = len(index)
        self._seen = Marks()

    def new(
        self,
        objects: Sequence[ObjectInfo],
        numbers: NDArray[np.int64],
        rewritten: NDArray[np.bool_],
    ) -> list[ObjectInfo]:
        """Those that get a number: they have none, or they were rewritten and nothing of the version
        that has one is cached. `numbers` and `rewritten` are what the index says of them."""
        held = set(self._holds(numbers[rewritten].tolist())) if rewritten.any() else set()
        stale = rewritten & ~np.isin(numbers, list(held))
        self._seen.add(numbers[(numbers >= 0) & ~stale])
        places = np.flatnonzero((numbers < 0) | stale).tolist()
        return list({(objects[p].key, objects[p].begin): objects[p] for p in places}.values())

    def end(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The units that are gone now and were not, and those that were and are back."""
        return self._index.gone.changes(self._seen, self._known)
