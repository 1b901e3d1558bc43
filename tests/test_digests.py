"""The digests of the keys that a listing has met."""

from __future__ import annotations

import numpy as np

from cachecd.digests import DigestSet


def test_digests_that_share_their_first_half_are_told_apart():
    known = DigestSet()
    known.add(np.array([[7, 1], [7, 2], [7, 3]], np.uint64))
    known.add(np.array([[7, 9], [2**64 - 1, 5]], np.uint64))
    asked = np.array(
        [[7, 3], [7, 4], [7, 9], [6, 1], [8, 1], [2**64 - 1, 5], [2**64 - 1, 6]], np.uint64
    )
    assert known.has(asked).tolist() == [True, False, True, False, False, True, False]
    assert known.has(np.empty((0, 2), np.uint64)).tolist() == []
    assert DigestSet().has(asked).tolist() == [False] * 7
