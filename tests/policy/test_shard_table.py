"""The shard table: sets, versions, holds, and that it stays small."""

from cachecd.daemon.manifest import decode_manifest, encode_manifest
from cachecd.model import ShardFacts
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
    return table.take_unheld()


def test_table_that_a_start_found_is_the_same_as_one_that_grew():
    empty, other = ShardFacts(1, 0, 0), FACTS._replace(version=2)
    found = [(4, FACTS, Status.LIVE), (5, other, Status.LIVE), (8, FACTS, Status.QUARANTINED)]
    found += [(10, empty, Status.LIVE), (14, other, Status.LIVE)]  # 6 and 12 were never there
    loaded, grown = ShardTable(1), ShardTable(1)
    loaded.load(found)
    for each in found:
        grown.add(*each)
    for table in (loaded, grown):
        table.add(16, FACTS)
    assert loaded.select() == grown.select()
    assert list(loaded.live()) == list(grown.live())
    assert [loaded.status(n) for n in range(20)] == [grown.status(n) for n in range(20)]
    for name in ("total", "live_bytes", "num_live", "records", "ended"):
        assert getattr(loaded, name) == getattr(grown, name) > 0


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
    first, both = lease("x", ((0, 0, 0),)), lease("y", ((0, 0, 1),))
    table.hold(first)
    table.hold(both)
    table.set_status(0, Status.RETIRING)
    assert table.oldest_current(0) == 0
    table.marked(0)
    assert table.oldest_current(0) == 1
    table.let_go(both)
    assert table.take_unheld() == []
    table.let_go(first)
    assert table.take_unheld() == [(0, 0)]
    assert table.take_unheld() == [], "once"


def test_older_version_is_unlinked_with_its_last_lease():
    table = a_table()
    before = lease("x", ((0, 0, 3),))
    table.hold(before)
    table.set_status(2, Status.QUARANTINED)
    table.replace(2, FACTS._replace(version=1), dropped=False)
    assert table.take_unheld() == []
    chosen = table.select()
    assert chosen.versions == ((2, 1),)
    after = lease("y", chosen.intervals, chosen.versions)
    table.hold(after)
    assert table.total == 50
    table.let_go(before)
    assert table.take_unheld() == [(2, 0)]
    table.unlinked(2, 0)
    assert table.total == 40
    assert table.is_held(2, 1)
    table.let_go(after)
    assert table.take_unheld() == []


def test_versions_of_several_streams_ascend():
    table = ShardTable(2)
    for number in (0, 1, 3, 4):
        table.add(number, FACTS._replace(version=1))
    chosen = table.select()
    assert chosen.intervals == ((0, 0, 1), (1, 0, 1))
    assert chosen.versions == ((0, 1), (1, 1), (3, 1), (4, 1))
    text = encode_manifest(lease("x", chosen.intervals, chosen.versions)._replace(streams=2), None)
    assert len(decode_manifest(text).versions) == 4, "a trainer reads it"


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
    assert table.take_unheld() == [(0, 0), (2, 0), (4, 0), (6, 0)]
    for number in (0, 2, 4, 6):
        table.unlinked(number, 0)
    assert table.total == 8 * 10


def test_table_is_empty_once_everything_is_unlinked():
    table = a_table(2)
    assert not table.is_empty
    for number in (0, 2):
        for name in retire(table, number):
            table.unlinked(*name)
    assert table.is_empty
    assert table.total == table.live_bytes == table.num_live == table.ended == 0
