"""Which numbers an index gave to keys, told from its own blocks on disk: no memory per key, mostly.

Nearly every store lists its keys in one order, so the blocks of a listing cover ranges of keys that
do not overlap. To tell whether a key is known, at most one block of each *layer* of such blocks is
looked into. Blocks that do overlap are of several listings (what each found new), of the mixed
beginning of a listing, or of a store without an order; with too many of them the keys' digests are
held in memory instead, 24 bytes a key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cachecd.digests import Digests, digests_of

# A page of a listing is looked for in at most one or two blocks a layer, and a block has some thousand
# keys.
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

    def overlaps(self, first: bytes, last: bytes) -> bool:
        return bisect_left(self.lasts, first) < bisect_right(self.firsts, last)


class KnownKeys:
    """The keys of an index's blocks, whose units are numbered from 0 on. A key may have several numbers.

    `last` is the last key if all ascend, else None: a listing that was cut off can go on after it.
    `keys_of(block)` reads a block's keys; what it raises passes through, and nothing has changed then.
    """

    def __init__(self, keys_of: Callable[[int], list[bytes]]) -> None:
        self.last: bytes | None = b""
        self._keys_of = keys_of
        self._begins = [0]
        self._layers: list[_Layer] = []
        self._digests = Digests()
        self._any_digests = False
        self._recent: OrderedDict[int, dict[bytes, int]] = OrderedDict()

    def add(self, first: bytes, last: bytes, units: int, ascending: bool) -> None:
        """The next block: its least and its greatest key, how many it has, and whether they ascend."""
        block, begin = len(self._begins) - 1, self._begins[-1]
        if not self._layered(block, first, last):
            digests = digests_of(self._keys_of(block))
            self._digests.add(digests, np.arange(begin, begin + units))
            self._any_digests = True
        goes_on = self.last is not None and (block == 0 or first > self.last)
        self.last = last if goes_on and ascending else None
        self._begins.append(begin + units)

    def find(self, keys: Sequence[bytes]) -> NDArray[np.int64]:
        """The last number of each of these, -1 of those that have none; [n]."""
        if self._any_digests:
            found = self._digests.find(digests_of(keys))
        else:
            found = np.full(len(keys), -1, np.int64)
        if not keys:
            return found
        # In their order, so that each block is looked into once, whatever the order of the page.
        order = sorted(range(len(keys)), key=keys.__getitem__)
        for layer in self._layers:
            if layer.overlaps(keys[order[0]], keys[order[-1]]):
                self._find_in(layer, keys, order, found)
        return found

    def _find_in(
        self, layer: _Layer, keys: Sequence[bytes], order: list[int], found: NDArray[np.int64]
    ) -> None:
        at, begin = -1, 0
        block: dict[bytes, int] = {}
        for place in order:
            key = keys[place]
            if at < 0 or key > layer.lasts[at]:
                at = bisect_left(layer.lasts, key)
                if at == len(layer.lasts):
                    return
                block = {}
            if key >= layer.firsts[at]:
                if not block:
                    block, begin = self._block(layer.blocks[at]), self._begins[layer.blocks[at]]
                if (nth := block.get(key)) is not None:
                    found[place] = max(found[place], begin + nth)

    def _layered(self, block: int, first: bytes, last: bytes) -> bool:
        for layer in self._layers:
            if (at := layer.place(first, last)) is not None:
                layer.insert(at, first, last, block)
                return True
        if len(self._layers) == _MOST_LAYERS:
            return False
        self._layers.append(_Layer([first], [last], [block]))
        return True

    def _block(self, block: int) -> dict[bytes, int]:
        """The place of each key of a block."""
        if (keys := self._recent.get(block)) is None:
            keys = {key: nth for nth, key in enumerate(self._keys_of(block))}
            self._recent[block] = keys
            if len(self._recent) > 2 * len(self._layers):  # of each, those around the last page
                self._recent.popitem(last=False)
        self._recent.move_to_end(block)
        return keys
