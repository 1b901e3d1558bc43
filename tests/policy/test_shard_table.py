"""The shard table: sets, versions, holds, and that it stays small."""

import pytest

from cachecd.model import ShardFacts
from cachecd.policy import shard_table
from cachecd.policy.shard_table import ShardTable, Status
from cachecd.policy.values import Lease

FACTS = ShardFacts(allocated=10, records=2, data_bytes=8, ended=1, digest=(1 << 64) - 1)


def a_table(shards: int = 4) -> ShardTable:
    """One stream of shards 0, 2, 4 ...; stream 1 makes supplements."""
    table = ShardTable(1)
    for j in range(shards):
        table.add(2 * j, FACTS)
    return table


def lease(name: str, intervals, versions=()) -> Lease:
    return Lease(name, "a", "one", "job", 0, 1, intervals, versions, 0, 0, "", 0, 0, False, 1, 0)


def retire(table: ShardTable, number: int) -> list[tuple[int, int]]:
    """Retires a number. Returns what is to be unlinked."""
    table.set_status(number, Status.RETIRING)
    if not table.needs_mark(number):
        return [(number, table.facts(number).version)]
    table.marked(number)
    return table.take_unleased()


def test_set_has_intervals_and_sums():
    table = a_table()
    table.set_status(2, Status.QUARANTINED)
    chosen = table.select()
    assert chosen.intervals == ((0, 0, 0), (0, 2, 3))
    assert (chosen.records, chosen.data_bytes, chosen.allocated) == (6, 24, 30)
    assert chosen.digest == (1 << 64) - 3, "a sum modulo 2^64"


def test_shard_without_records_is_in_no_set():
    table = a_table(1)
    table.add(2, ShardFacts(1, 0, 0))
    assert table.select().intervals == ((0, 0, 0),)
    assert (table.num_live, table.live_bytes) == (1, 11)


def test_retired_shard_is_unlinked_with_its_last_lease():
    table = a_table()
    first, both = lease("x", ((0, 0, 0),)), lease("y", ((0, 0, 1),))
    table.hold(first)
    table.hold(both)
    table.set_status(0, Status.RETIRING)
    assert table.oldest_current(0) == 0
    table.marked(0)
    assert table.oldest_current(0) == 1
    table.let_go(both)
    assert table.take_unleased() == []
    table.let_go(first)
    assert table.take_unleased() == [(0, 0)]
    assert table.take_unleased() == [], "once"


def test_older_version_is_unlinked_with_its_last_lease():
    table = a_table()
    before = lease("x", ((0, 0, 3),))
    table.hold(before)
    table.set_status(2, Status.QUARANTINED)
    table.replace(2, FACTS._replace(version=1), dropped=False)
    assert table.take_unleased() == []
    chosen = table.select()
    assert chosen.versions == ((2, 1),)
    after = lease("y", chosen.intervals, chosen.versions)
    table.hold(after)
    assert table.total == 50
    table.let_go(before)
    assert table.take_unleased() == [(2, 0)]
    table.unlinked(2, 0)
    assert table.total == 40
    assert table.is_leased(2, 1)
    table.let_go(after)
    assert table.take_unleased() == []


def test_kept_bytes_count_the_versions_that_each_lease_names():
    table = a_table()
    before = lease("x", ((0, 0, 1), (0, 3, 3)))
    table.hold(before)
    table.set_status(2, Status.QUARANTINED)
    table.replace(2, FACTS._replace(version=1, allocated=7), dropped=False)
    after = lease("y", ((0, 0, 2),), ((2, 1),))
    table.hold(after)
    assert table.kept_bytes() == {"x": 10, "y": 0}, "version 0 of shard 2 has 10 bytes"
    for number in (0, 2, 4, 6):
        retire(table, number)
    assert table.kept_bytes() == {"x": 30, "y": 27}


def test_kept_bytes_of_many_leases_read_each_retired_shard_once(monkeypatch: pytest.MonkeyPatch):
    table, calls = ShardTable(1), []
    for n in range(20):
        table.hold(lease(f"{n}", ((0, n, 99),)))
    for j in range(100):
        table.keep(2 * j, 0, 10)
    place = shard_table.shard_place

    def counted(streams: int, number: int) -> tuple[int, int]:
        calls.append(number)
        return place(streams, number)

    monkeypatch.setattr(shard_table, "shard_place", counted)
    assert table.kept_bytes() == {f"{n}": 10 * (100 - n) for n in range(20)}
    assert len(calls) == 100


def test_table_stays_small_while_an_old_lease_stays():
    table = a_table(8)
    old = lease("x", ((0, 0, 3),))
    table.hold(old)
    for j in range(8, 8_000):
        table.add(2 * j, FACTS)
        for name in retire(table, 2 * (j - 8)):
            table.unlinked(*name)
    assert len(table._columns[0].rows) < 100
    assert table.total == 12 * 10
    table.let_go(old)
    assert table.take_unleased() == [(0, 0), (2, 0), (4, 0), (6, 0)]
    for number in (0, 2, 4, 6):
        table.unlinked(number, 0)
    assert table.total == 8 * 10


def test_what_was_passed_over_in_a_shard_without_records_counts_too():
    table = ShardTable(1)
    table.add(0, ShardFacts(10, 5, 8, passed=2))
    table.add(2, ShardFacts(4, 0, 0, passed=50))
    chosen = table.select()
    assert (chosen.records, chosen.passed, chosen.intervals) == (5, 52, ((0, 0, 0),))
