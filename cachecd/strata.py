"""The order of a block's units in which every stretch has each class in its share. Pure.

Systematic sampling, of all classes at once: the i-th of a class's n units, in a keyed order, has its place
at (i + u) / n of the block, and all are sorted by place. So of any stretch of places a class has its share,
but for less than one unit. The classes' offsets u are spread evenly, by the golden ratio, those of classes
of about one size beside each other: with offsets by chance, of a thousand classes of one unit and one of
ten thousand, the rare ones come in clusters, and the large one lacks up to 49 units instead of 4.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachecd_client._core import Permutation

_GOLDEN = 0x9E3779B97F4A7C15  # the golden ratio, as a fraction of 2**64

Order = NDArray[np.unsignedinteger[Any]]


class Block(NamedTuple):
    """The units [begin, end), ordered by this key."""

    begin: int
    end: int
    key: int


class Strata:
    """The orders of one dataset's blocks. Each is asked for when the walk comes to its block, and stays:
    4 bytes a unit."""

    def __init__(self) -> None:
        self._orders: dict[Block, Order | None] = {}
        self._wanted: list[Block] = []

    @property
    def coming(self) -> int:
        """How many units the blocks have whose order has been asked for and is not there yet."""
        return sum(b.end - b.begin for b, order in self._orders.items() if order is None)

    def order_of(self, block: Block) -> Order | None:
        """The block's units in their order, counted from its first; None if that is still to be made."""
        if block not in self._orders:
            self._orders[block] = None
            self._wanted.append(block)
        return self._orders[block]

    def take_wanted(self) -> list[Block]:
        """The blocks whose order nobody has been told to make yet."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def ordered(self, block: Block, order: Order) -> None:
        """The block's order has been made."""
        self._orders[block] = order


def stratified(classes: NDArray[np.int32], key: int) -> Order:
    """A permutation of the places of `classes`, the class of each unit: 0, 1, 2 ..., none of them left out.

    It follows from classes and key alone. Among any m units in a row, a class that has a share p of all
    units of k classes has p * m, but for less than 1 + p * k. Takes 0.3 s for a million units, and while
    it lasts up to 50 bytes a unit.
    """
    count = len(classes)
    by_key = Permutation(count, key).take(0, count).astype(np.min_scalar_type(count))
    by_class = by_key[np.argsort(classes[by_key], kind="stable")]
    sizes = np.bincount(classes)
    turns = np.arange(len(sizes), dtype=np.uint64) * np.uint64(_GOLDEN)
    turns += np.uint64(key * _GOLDEN % (1 << 64))
    offsets = np.empty(len(sizes))
    offsets[np.argsort(-sizes, kind="stable")] = turns / 2.0**64
    places = np.arange(count, dtype=np.float64)
    places -= np.repeat(np.cumsum(sizes) - sizes - offsets, sizes)
    places /= np.repeat(sizes, sizes)
    return by_class[np.argsort(places, kind="stable")]
