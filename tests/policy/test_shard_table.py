"""The shard table: sets, versions, holds, and that it stays small."""

from cachecd.policy.shard_table import ShardTable, Status
from cachecd.policy.values import ShardFacts

FACTS = ShardFacts(allocated=10, records=2, data_bytes=8, ended=1, digest=(1 << 64) - 1)


def a_table(shards: int = 4) -> ShardTable:
    """One stream of shards 0, 2, 4 ...; stream 1 makes supplements."""
    table = ShardTable(1)
    table.load((2 * j, FACTS, Status.LIVE) for j in range(shards))
    return table


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


def test_set_up_to_a_shard():
    assert a_table().select(upto=2).intervals == ((0, 0, 1),)


def test_retired_shard_is_unlinked_with_its_last_lease():
    table = a_table()
    first, both = ((0, 0, 0),), ((0, 0, 1),)
    table.hold(first, ())
    table.hold(both, ())
    table.set_status(0, Status.RETIRING)
    assert table.oldest_current(0) == 0
    table.set_status(0, Status.RETIRED)
    assert table.oldest_current(0) == 1
    assert table.let_go(both, ()) == []
    assert table.let_go(first, ()) == [(0, 0)]


def test_older_version_is_unlinked_with_its_last_lease():
    table = a_table()
    everything = ((0, 0, 3),)
    table.hold(everything, ())
    table.set_status(2, Status.QUARANTINED)
    assert table.replace(2, FACTS._replace(version=1), dropped=False) == []
    chosen = table.select()
    assert chosen.versions == ((2, 1),)
    table.hold(chosen.intervals, chosen.versions)
    assert table.total == 50
    assert table.let_go(everything, ()) == [(2, 0)]
    table.unlinked(2, 0)
    assert table.total == 40
    assert table.is_held(2)
    assert table.let_go(chosen.intervals, chosen.versions) == []


def test_table_stays_small_while_an_old_lease_stays():
    table = a_table(8)
    old = ((0, 0, 3),)
    table.hold(old, ())
    for j in range(8, 8_000):
        table.add(2 * j, FACTS)
        number = 2 * (j - 8)
        held = table.is_held(number)
        table.set_status(number, Status.RETIRED if held else Status.RETIRING)
        if not held:
            table.unlinked(number, 0)
            table.forget_gone()
    assert table._columns[0].size < 2000
    assert table.total == 12 * 10
    assert sorted(table.let_go(old, ())) == [(0, 0), (2, 0), (4, 0), (6, 0)]
    for number in (0, 2, 4, 6):
        table.unlinked(number, 0)
    assert table.total == 8 * 10


def test_start_with_an_old_lease_makes_a_small_table():
    table = ShardTable(1)
    table.load(
        [
            (0, FACTS, Status.RETIRED),
            *((2 * j, FACTS, Status.LIVE) for j in range(10**6, 10**6 + 8)),
        ]
    )
    table.hold(((0, 0, 0),), ())
    assert table._columns[0].size == 8
    assert table.total == 90
    assert table.unheld() == []
    assert table.let_go(((0, 0, 0),), ()) == [(0, 0)]


def test_start_unlinks_retired_shards_without_a_lease():
    table = ShardTable(1)
    table.load([(0, FACTS, Status.RETIRED), (2, FACTS, Status.LIVE)])
    assert table.unheld() == [(0, 0)]
