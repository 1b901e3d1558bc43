"""The digests of the keys that a listing has met."""

from __future__ import annotations

import numpy as np

from cachecd.digests import Digests


def test_digests_that_share_their_first_half_are_told_apart():
    known = Digests()
    known.add(np.array([[7, 1], [7, 2], [7, 3]], np.uint64), np.arange(3))
    known.add(np.array([[7, 9], [2**64 - 1, 5]], np.uint64), np.arange(3, 5))
    asked = np.array(
        [[7, 3], [7, 4], [7, 9], [6, 1], [8, 1], [2**64 - 1, 5], [2**64 - 1, 6]], np.uint64
    )
    assert known.find(asked).tolist() == [2, -1, 3, -1, -1, 4, -1]
    assert known.find(np.empty((0, 2), np.uint64)).tolist() == []
    assert Digests().find(asked).tolist() == [-1] * 7


def test_of_several_numbers_a_digest_has_the_last_one():
    known = Digests()
    for number in (4, 7, 5):
        known.add(np.array([[7, 1], [number, number]], np.uint64), np.array([number, number + 10]))
    assert known.find(np.array([[7, 1], [5, 5]], np.uint64)).tolist() == [7, 15]
