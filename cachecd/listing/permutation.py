"""Orders the units within a block by a keyed permutation, which is the same in every pass. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from cachecd_client._core import PERMUTATION_VERSION, Permutation

# Never change the permutation: cursors count places in this order, and would name other units.
assert PERMUTATION_VERSION == 1


class BlockOrder:
    """Maps places of one block to units, in O(1) time and memory.

    Seed, block number and block size decide the order, on every machine and in every release.
    """

    def __init__(self, seed: int, block: int, ends: Sequence[int]) -> None:
        """`ends`: the ends of all blocks. IndexError if there is no such block."""
        self._begin = ends[block - 1] if block else 0
        digest = hashlib.blake2b(
            f"{seed} {block}".encode(), digest_size=8, person=b"block order"
        ).digest()
        key = int.from_bytes(digest, "little")
        self._permutation = Permutation(ends[block] - self._begin, key)

    def unit(self, g: int) -> int:
        """Returns the number of the unit at place g of the generation. IndexError outside the block."""
        return self._begin + self._permutation[g - self._begin]
