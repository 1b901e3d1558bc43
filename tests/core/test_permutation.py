"""Permutation: a bijection, frozen, and even."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd_client._core import PERMUTATION_VERSION, Permutation


def test_version_1_is_frozen():
    """Orders and shard contents hang on these: a change needs a new version, not a new test."""
    assert PERMUTATION_VERSION == 1
    assert Permutation(10, 0).take(0, 10).tolist() == FROZEN_10
    assert Permutation(1000, 17).take(0, 8).tolist() == FROZEN_1000
    assert Permutation(10**12, 2**64 - 1).take(0, 4).tolist() == FROZEN_LARGE
    every = Permutation(100_000, 42).take(0, 100_000).astype("<u8")
    assert hashlib.sha256(every.tobytes()).hexdigest() == FROZEN_DIGEST


@given(st.integers(0, 3000), st.integers(0, 2**64 - 1))
def test_every_image_occurs_once(n, key):
    assert sorted(Permutation(n, key).take(0, n).tolist()) == list(range(n))


@given(st.integers(20, 2**62), st.integers(0, 2**64 - 1), st.data())
def test_images_of_huge_domains_are_in_range_and_distinct(n, key, data):
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=2, max_size=20, unique=True))
    permutation = Permutation(n, key)
    images = [permutation[position] for position in positions]
    assert all(0 <= image < n for image in images)
    assert len(set(images)) == len(positions)


@pytest.mark.parametrize(("start", "count"), [(0, 11), (11, 0), (5, 6), (1, 2**63)])
def test_a_range_that_ends_outside_is_an_index_error(start, count):
    with pytest.raises(IndexError):
        Permutation(10, 0).take(start, count)


FROZEN_10 = [1, 4, 3, 7, 8, 9, 2, 5, 0, 6]
FROZEN_1000 = [488, 502, 220, 332, 200, 673, 479, 440]
FROZEN_LARGE = [622122531468, 58620142484, 942942709641, 795099410551]
FROZEN_DIGEST = "96c0b81f27bbcaced666938708b4345259403ab2369659c9c82952f8a3b6ab6f"


def test_keys_and_sizes_give_unlike_orders():
    orders = [Permutation(1000, key).take(0, 1000) for key in range(20)]
    orders += [Permutation(n, 0).take(0, 999) for n in (1001, 1002)]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            same = int(np.count_nonzero(one[:999] == other[:999]))
            assert same < 10  # one is expected of independent orders; ten in 10**-7 of them


@pytest.mark.long
@pytest.mark.parametrize("n", [5, 10, 17, 200])
def test_every_image_is_as_likely_at_every_position(n):
    keys = 20_000
    counts = np.zeros((n, n))
    for key in range(keys):
        counts[np.arange(n), Permutation(n, key).take(0, n)] += 1
    expected = keys / n
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = (n - 1) ** 2
    # Six rounds on the smallest domains miss this by far; chance does in one of 10**9 cases.
    assert chi_square < freedom + 6 * np.sqrt(2 * freedom) + 12
