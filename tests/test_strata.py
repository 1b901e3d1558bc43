"""Stratified walks: every class in its share all along, the same on every run, and no unit twice."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.cycle import Cycle
from cachecd.model import Assignment, Outcome
from cachecd.plan import Blocked, Plan
from cachecd.strata import Block, Order, Strata, stratified
from tests.units import SHARD_SIZE, Units

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=30)
KEYS = st.integers(0, 2**64 - 1)


def classes_of(sizes: list[int], shuffled: int | None = None) -> np.ndarray:
    """So many units of each class, one class after the other as in a sorted source, or shuffled."""
    found = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    if shuffled is not None:
        np.random.default_rng(shuffled).shuffle(found)
    return found


def widest(classes: np.ndarray, order: Order) -> np.ndarray:
    """By how many units a class differs at most from its share, over all stretches of the order."""
    found = []
    for number, size in enumerate(np.bincount(classes)):
        had = np.concatenate([[0], np.cumsum(classes[order] == number)])
        off = had - np.arange(len(had)) * (size / len(classes))
        found.append(off.max() - off.min())
    return np.array(found)


# --- the order


@given(SIZES, KEYS, st.integers(0, 9))
def test_an_order_has_every_unit_once_and_each_class_in_its_share_of_any_stretch(sizes, key, seed):
    classes = classes_of(sizes, seed)
    order = stratified(classes, key)
    assert sorted(order.tolist()) == list(range(len(classes)))
    shares = np.bincount(classes) / len(classes)
    assert (widest(classes, order) < 1 + shares * len(shares) + 1e-9).all()


@pytest.mark.parametrize(
    ("sizes", "most"),
    [
        ([20] * 100, 1.001),
        ([9999, 3], 1.001),
        ([5000] + [1] * 500 + [3] * 100 + [7] * 100, 5.0),
        ([max(1, 4000 // n) for n in range(1, 301)], 6.5),
    ],
    ids=["all alike", "a rare one", "a great one among many rare ones", "a long tail"],
)
def test_classes_of_all_sizes_keep_close_to_their_shares(sizes, most):
    classes = classes_of(sizes)
    for key in range(2):
        assert widest(classes, stratified(classes, key)).max() < most


def test_rare_classes_are_spread_over_the_whole_pass():
    classes = classes_of([10_000] + [1] * 100)
    places = np.flatnonzero(classes[stratified(classes, 5)])
    assert (
        np.diff(places).max() < 3 * 101
    )  # by chance it would be some five times as long as their mean


def test_an_order_follows_from_classes_and_key_alone():
    classes = classes_of([30, 200, 1, 70], 3)
    order = stratified(classes, 17)
    assert (stratified(classes.copy(), 17) == order).all()
    assert (stratified(classes, 18) != order).any()
    # So that no release changes what is in which shard of a cache that it finds.
    assert stratified(classes_of([4, 2, 6]), 17).tolist() == [3, 11, 6, 2, 5, 8, 0, 10, 9, 1, 4, 7]


def test_within_a_class_units_come_in_an_order_that_differs_from_key_to_key():
    classes = classes_of([50, 50])
    of_first = [[u for u in stratified(classes, key).tolist() if u < 50] for key in range(20)]
    assert len({tuple(units) for units in of_first}) == 20
    assert sorted(of_first[0]) == list(range(50)) != of_first[0]


def test_an_order_takes_four_bytes_a_unit_or_less():
    assert stratified(np.zeros(200, np.int32), 1).itemsize == 1
    assert stratified(np.zeros(100_000, np.int32), 1).itemsize == 4


# --- the cycle and the plan


def test_a_cycle_asks_for_the_order_of_the_block_it_has_come_to_and_of_no_other():
    strata = Strata()
    cycle = Cycle(17, strata)
    cycle.add_block(100)
    cycle.add_block(140)
    assert cycle.ahead(0, 10) is None
    (first,) = strata.take_wanted()
    assert (first.begin, first.end, strata.coming) == (0, 100, 100)
    assert cycle.ahead(0, 10) is None
    assert strata.take_wanted() == []
    strata.ordered(first, np.arange(100, dtype=np.uint8)[::-1])
    assert cycle.ahead(3, 4).tolist() == [96, 95, 94, 93]
    assert strata.coming == 0
    assert cycle.ahead(100, 10) is None
    (second,) = strata.take_wanted()
    assert (second.begin, second.end) == (100, 140)
    assert second.key != first.key
    strata.ordered(second, np.arange(40, dtype=np.uint8))
    assert cycle.ahead(138, 10).tolist() == [138, 139]
    assert cycle.ahead(140, 2).tolist() == [99, 98]  # the next cycle


class Walk:
    """A plan over units of 40 classes, sorted; each shard holds what is assigned to it."""

    def __init__(self, units: int) -> None:
        self.units, self.strata, self.asked = Units([1000] * units), Strata(), []
        self.plan = Plan("train", "g", self.units, 17, SHARD_SIZE, strata=self.strata)
        self.plan.extend()

    def order(self) -> None:
        for block in self.strata.take_wanted():
            self.asked.append(block)
            self.strata.ordered(block, stratified(self.classes(block), block.key))

    @staticmethod
    def classes(block: Block) -> np.ndarray:
        return ((np.arange(block.begin, block.end) // 50) % 40).astype(np.int32)

    def shards(self, count: int, chance: random.Random | None = None) -> list[list[int]]:
        """So many more; with a chance, orders come late."""
        found: list[list[int]] = []
        while len(found) < count:
            assigned = self.plan.assign()
            if not isinstance(assigned, Assignment):
                assert isinstance(assigned, Blocked)
                if chance is None or chance.random() < 0.2:
                    self.order()
                continue
            found.append([u.unit for u in assigned.units])
            size = 1000 * len(found[-1])
            made = Outcome(len(found[-1]), size, 0, size, size, 0.0)
            self.plan.finish(assigned.shard.number, made, found[-1])
        return found


def test_every_shard_and_every_growing_set_has_the_classes_in_their_shares():
    walk = Walk(2000)
    shards = walk.shards(30)
    for shard in shards[:-1]:
        assert len(shard) > 40
        assert all(1 <= n <= 2 for n in Counter(u // 50 for u in shard).values())
        assert len({u // 50 for u in shard}) == 40
    held = Counter(u // 50 for shard in shards[:15] for u in shard)
    assert max(held.values()) - min(held.values()) <= 1
    taken = [u for shard in shards for u in shard]
    assert len(taken) == len(set(taken))


def test_shards_are_the_same_whenever_the_orders_come():
    expected = Walk(2000).shards(20)
    for seed in range(5):
        assert Walk(2000).shards(20, random.Random(seed)) == expected


def test_what_is_listed_later_is_a_block_of_its_own_and_changes_nothing_before():
    alone = Walk(1000).shards(10)
    walk = Walk(1000)
    assert walk.shards(5) == alone[:5]
    walk.units.append([1000] * 500)
    walk.plan.extend()
    assert walk.shards(5) == alone[5:]
    walk.shards(12)
    assert [(b.begin, b.end) for b in walk.asked] == [(0, 1000), (1000, 1500)]
