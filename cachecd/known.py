"""Which keys an index has, told from its own blocks on disk: no memory per key for an ordered store.

Nearly every store lists its keys in one order, so the blocks of a listing cover ranges of keys that
do not overlap. To tell whether a key is known, at most one block of each listing is looked into.
Blocks that do overlap are of several listings (what each found new), or of a store without an order;
with too many of them the keys' digests are held in memory instead, 16 bytes a key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cachecd.digests import DigestSet, digests_of

# A page of a listing is looked for in at most one block a layer, and a block has some thousand keys.
_MOST_LAYERS = 32


@dataclass(slots=True)
class _Layer:
    """Blocks whose ranges of keys do not overlap, ascending."""

    firsts: list[bytes] = field(default_factory=list)
    lasts: list[bytes] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)

    def place(self, first: bytes, last: bytes) -> int | None:
        """Where a block of this range belongs; None if it overlaps another."""
        at = bisect_right(self.firsts, first)
        clear = (at == 0 or self.lasts[at - 1] < first) and (
            at == len(self.firsts) or last < self.firsts[at]
        )
        return at if clear else None

    def insert(self, at: int, first: bytes, last: bytes, block: int) -> None:
        self.firsts.insert(at, first)
        self.lasts.insert(at, last)
        self.blocks.insert(at, block)

    def overlapping(self, first: bytes, last: bytes) -> Sequence[int]:
        return self.blocks[bisect_left(self.lasts, first) : bisect_right(self.firsts, last)]


class KnownKeys:
    """The keys of an index's blocks.

    `last` is the last key if all ascend, else None: a listing that was cut off can go on after it.
    `keys_of(block)` reads a block's keys; what it raises passes through, and nothing has changed then.
    """

    def __init__(self, keys_of: Callable[[int], list[bytes]]) -> None:
        self.last: bytes | None = b""
        self._keys_of = keys_of
        self._blocks = 0
        self._layers: list[_Layer] = []
        self._digests: DigestSet | None = None
        self._recent: OrderedDict[int, frozenset[bytes]] = OrderedDict()

    def add(self, first: bytes, last: bytes, ascending: bool) -> None:
        """The next block: its least and its greatest key, and whether its keys ascend."""
        block = self._blocks
        if self._digests is not None:
            self._digests.add(digests_of(self._keys_of(block)))
        elif not self._layered(block, first, last):
            self._digests = self._digested(block + 1)
            self._layers, self._recent = [], OrderedDict()
        goes_on = self.last is not None and (block == 0 or first > self.last)
        self.last = last if goes_on and ascending else None
        self._blocks += 1

    def has(self, keys: Sequence[bytes]) -> NDArray[np.bool_]:
        """Which of these are known; [n]."""
        if self._digests is not None:
            return self._digests.has(digests_of(keys))
        found = np.zeros(len(keys), np.bool_)
        for begin, end in _runs(keys):
            near = self._near(keys[begin], keys[end - 1])
            if near:
                found[begin:end] = [any(key in block for block in near) for key in keys[begin:end]]
        return found

    def _layered(self, block: int, first: bytes, last: bytes) -> bool:
        for layer in self._layers:
            if (at := layer.place(first, last)) is not None:
                layer.insert(at, first, last, block)
                return True
        if len(self._layers) == _MOST_LAYERS:
            return False
        self._layers.append(_Layer([first], [last], [block]))
        return True

    def _near(self, first: bytes, last: bytes) -> list[frozenset[bytes]]:
        """The blocks that may have keys from `first` to `last`."""
        return [self._block(b) for layer in self._layers for b in layer.overlapping(first, last)]

    def _block(self, block: int) -> frozenset[bytes]:
        if (keys := self._recent.get(block)) is None:
            keys = self._recent[block] = frozenset(self._keys_of(block))
            if len(self._recent) > 2 * len(self._layers):  # of each, those around the last page
                self._recent.popitem(last=False)
        self._recent.move_to_end(block)
        return keys

    def _digested(self, blocks: int) -> DigestSet:
        known = DigestSet()
        for block in range(blocks):
            known.add(digests_of(self._keys_of(block)))
        return known


def _runs(keys: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """The ascending stretches of a page, so that a page of a store whose order is a little different
    (folder by folder) does not seem to reach over everything."""
    begin = 0
    for place in range(1, len(keys) + 1):
        if place == len(keys) or keys[place] < keys[place - 1]:
            yield begin, place
            begin = place
