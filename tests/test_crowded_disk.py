"""Others write to the cache's file system too, and have it full before the limit is reached."""

from __future__ import annotations

import pytest

from cachecd.restraint import Restraint
from cachecd.rules import DatasetRules
from tests.world import FOOTPRINT, SHARD_SIZE, UNIT, Units, World, granted, numbers, train, world

LIMIT = 100 * FOOTPRINT  # which nothing reaches
OF_THE_DISK = 20 * FOOTPRINT  # 28 shards
A_QUARTER = 7  # of those: what `refresh` allows an epoch


class Greedy(World):
    """While `greedy`, others take what is free before anybody has seen that it is."""

    greedy = False

    def measure(self) -> None:
        if self.greedy:
            self.spare = self.occupied()
        super().measure()


def fresh_shards(w: World, epoch: int) -> int:
    """How many shards are new in an epoch's set, after enough epochs to find out what the link can do."""
    before = newest(w, range(epoch, epoch + 12))
    return newest(w, range(epoch + 12, epoch + 13)) - before


def settled(w: World) -> None:
    """The disk is measured as often as something has happened."""
    while True:
        w.settle()
        w.measure()
        if not (w.making or w.publishing or w.unlinking):
            return


def newest(w: World, epochs: range) -> int:
    """Trains these epochs; the newest shard of the last one's set."""
    last = 0
    for epoch in epochs:
        lease = granted(w.acquire("train", "job", epoch))
        last = max(numbers(w, lease))
        w.drop(lease)
        settled(w)
    return last


def test_others_that_take_whatever_is_freed_on_the_disk_get_a_shard_an_epoch():
    w = Greedy(LIMIT, {train(): Units([UNIT] * 400)})
    w.spare = OF_THE_DISK
    w.measure()
    settled(w)
    newest(w, range(12))  # it rotates as fast as it may
    w.greedy = True
    there = len(w.disk)
    for epoch in range(12, 24):
        newest(w, range(epoch, epoch + 1))
        lost, there = there - len(w.disk), len(w.disk)
        assert lost <= (7 if epoch == 12 else 1)
    w.greedy, w.spare = False, OF_THE_DISK
    w.measure()
    settled(w)
    assert w.occupied() > OF_THE_DISK - 2 * FOOTPRINT, "they are gone"
    assert fresh_shards(w, 24) == A_QUARTER


@pytest.mark.parametrize("limit", [OF_THE_DISK, LIMIT])
def test_on_a_full_disk_a_set_rotates_as_at_the_limit(limit):
    w = World(limit, {train(): Units([UNIT] * 400)})
    w.spare = None if limit == OF_THE_DISK else OF_THE_DISK
    w.measure()
    settled(w)
    assert fresh_shards(w, 0) == A_QUARTER


def test_on_a_full_disk_a_set_rotates_though_another_dataset_takes_of_the_room():
    other = DatasetRules("other", "1", first=SHARD_SIZE)
    w = World(LIMIT, {train(): Units([UNIT] * 300), other: Units([UNIT] * 300)})
    w.spare = OF_THE_DISK
    w.measure()
    settled(w)
    last = newest(w, range(20))
    for begin in range(20, 100, 20):
        before, last = last, newest(w, range(begin, begin + 20))
        assert last > before, "nothing rotates"


def test_a_lowered_limit_takes_no_more_than_it_must_where_nothing_comes_in_its_place():
    w = world(shards=40, units=200, refresh=0.1)
    settled(w)
    before = w.occupied()
    w.reconfigure(w.state.ledger.used - 7 * FOOTPRINT // 2)
    w.state.reconfigure(w.limit, (), Restraint(egress_limit=1))
    newest(w, range(10))
    assert w.state.ledger.used <= w.limit
    assert before - w.occupied() <= 9 * FOOTPRINT // 2
