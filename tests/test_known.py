"""Whether a key is known, told from blocks of keys."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd.digests import Digests
from cachecd.errors import DiskError
from cachecd.known import _MOST_LAYERS, KnownKeys


class Blocks:
    """Blocks of keys, as an index has them; counts how many are read."""

    def __init__(self) -> None:
        self.blocks: list[list[bytes]] = []
        self.read = 0
        self.known = KnownKeys(self.keys_of)

    def keys_of(self, block: int) -> list[bytes]:
        self.read += 1
        return self.blocks[block]

    def add(self, keys: list[bytes]) -> None:
        self.blocks.append(keys)
        self.known.add(min(keys), max(keys), len(keys), keys == sorted(keys))

    def has(self, keys: list[bytes]) -> list[bool]:
        return (self.known.find(keys) >= 0).tolist()


def key(number: int) -> bytes:
    return b"%06d" % number


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=9), max_size=80),
    st.lists(st.integers(0, 300)),
    st.booleans(),
)
def test_known_is_what_was_added_whatever_the_order(pages, asked, in_order):
    blocks, there = Blocks(), set()
    for page in sorted(map(sorted, pages)) if in_order else pages:
        assert blocks.has(list(map(key, page))) == [n in there for n in page]
        if new := list(dict.fromkeys(n for n in page if n not in there)):
            blocks.add(list(map(key, new)))
            there.update(new)
    assert blocks.has(list(map(key, asked))) == [n in there for n in asked]


def test_an_ordered_listing_reads_no_block_and_a_second_one_each_block_once():
    blocks = Blocks()
    pages = [list(map(key, range(start, start + 100))) for start in range(0, 20_000, 100)]
    for page in pages:
        assert not any(blocks.has(page))
        blocks.add(page)
    assert blocks.read == 0
    assert blocks.known.last == key(19_999)
    for start in range(0, 19_950, 50):  # pages that fit no block
        assert all(blocks.has(list(map(key, range(start + 25, start + 75)))))
    assert blocks.read <= 2 * len(pages)
    assert not blocks.known._any_digests


def test_what_later_listings_found_between_needs_no_memory_a_key_either():
    blocks = Blocks()
    for listing in range(_MOST_LAYERS):
        for start in range(0, 10_000, 1000):
            blocks.add([key(n) for n in range(start + listing, start + 1000, 100)])
    assert not blocks.known._any_digests
    assert blocks.known.last is None
    assert blocks.has([key(31), key(32), key(9931), key(9932)]) == [1, 0, 1, 0]


def test_a_store_without_an_order_is_told_by_digests():
    blocks, numbers = Blocks(), list(range(4000))
    random.Random(3).shuffle(numbers)
    for start in range(0, 4000, 100):
        blocks.add(list(map(key, numbers[start : start + 100])))
    assert blocks.known._any_digests
    before = blocks.read
    for begin in range(0, 4000, 100):
        assert all(blocks.has([key(n) for n in range(begin, begin + 100)]))
    assert not any(blocks.has([key(n) for n in range(4000, 4100)]))
    assert blocks.read <= before + _MOST_LAYERS  # those that no digests are held of


@pytest.mark.parametrize("last", [[3, 2], [0, 9]])
def test_only_a_listing_in_the_order_of_its_keys_can_go_on_after_its_last(last):
    blocks = Blocks()
    blocks.add([key(1), key(2)] if last[0] else [key(1), key(5)])
    blocks.add(list(map(key, last)))
    assert blocks.known.last is None


def test_a_block_that_cannot_be_read_changes_nothing():
    blocks = Blocks()
    for listing in range(_MOST_LAYERS):
        blocks.add([key(listing), key(1000 + listing)])
    read, blocks.blocks = blocks.blocks, []

    def failing(_: int) -> list[bytes]:
        raise DiskError("cannot read")

    blocks.known._keys_of = failing
    with pytest.raises(DiskError):
        blocks.known.add(key(500), key(1500), 2, True)
    blocks.blocks, blocks.known._keys_of = read, blocks.keys_of
    assert blocks.has([key(0), key(500)]) == [True, False]
    blocks.add([key(500), key(1500)])
    assert blocks.has([key(0), key(500)]) == [True, True]


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
