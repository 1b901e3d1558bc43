"""A start that finds a shard damaged which a trainer reads at that moment."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

from cachecd import events as ev
from cachecd.leases import write_manifest
from cachecd.model import ShardId
from cachecd.recovery import recover_leases
from cachecd_client.lease import HeldLease
from cachecd_client.protocol import Manifest
from tests.test_recovery import SCHEMA, Cache

LEASE = "train.0.ab12cd34.x1"
MANIFEST = Manifest(
    1, LEASE, "train", "job", 0, "1-a", [[1, 2]], 6, 300, 17, None, False, "ab", SCHEMA
)


@pytest.fixture
def cache(tmp_path):
    cache = Cache(tmp_path)
    yield cache
    cache.stop()


def damage(cache: Cache, how: str) -> None:
    path = cache.layout.shard(ShardId("train", 1))
    index = cache.layout.sidecar(path)
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif how == "without its sidecar":
        index.unlink()
    else:
        index.write_bytes(index.read_bytes()[:40])


@pytest.mark.parametrize(
    "changed", [{"generation": "2-b"}, {"generation": "1-a-5p117"}, {"seed": 7}, "the source"]
)
def test_it_stays_too_where_the_start_has_another_configuration(cache, changed):
    cache.make()
    cache.make()
    with contextlib.closing(HeldLease(write_manifest(cache.layout, MANIFEST))):
        damage(cache, "cut")
        if changed == "the source":
            cache.restart("another")
        else:
            cache.rules = dataclasses.replace(cache.rules, **changed)
            cache.restart()
        assert cache.found.found.removed == []
        assert cache.layout.shard(ShardId("train", 1)).exists()
        live = cache.found.state.live
        assert (live[1].served, live[2].served) == (False, True)


@pytest.mark.parametrize("manifest", ["whole", "damaged"])
@pytest.mark.parametrize("how", ["cut", "without its sidecar", "with a sidecar cut short"])
def test_a_shard_found_damaged_at_a_start_stays_while_a_trainer_holds_it(cache, how, manifest):
    units = {unit.unit for unit in cache.make().units}
    cache.make()
    path = write_manifest(cache.layout, MANIFEST)
    with contextlib.closing(HeldLease(path)):
        if manifest == "damaged":
            path.write_bytes(b"{")
        damage(cache, how)
        for _ in range(2):  # the catalog has noted it
            cache.restart()
            assert cache.layout.shard(ShardId("train", 1)).exists()
            live = cache.found.state.live
            assert (live[1].served, live[2].served) == (False, True)
            recover_leases(cache.layout, cache.state, now=0.0)
            assert LEASE in cache.state.leases
            assert not live.unlink()
        assert len(cache.found.found.in_use) == 1
        assert cache.found.found.removed == []
        assert units <= set(cache.rest())
    cache.restart()  # the lease ended while no daemon ran
    assert not cache.layout.shard(ShardId("train", 1)).exists()
    assert cache.numbers() == [2]
    assert cache.found.state.evicted_shards == 1


@pytest.mark.parametrize("how", ["cut", "without its sidecar", "with a sidecar cut short"])
def test_a_shard_found_damaged_at_a_start_goes_at_once_if_its_lease_is_not_held(cache, how):
    cache.make(), cache.make()
    write_manifest(cache.layout, MANIFEST)
    damage(cache, how)
    cache.restart()
    assert not cache.layout.shard(ShardId("train", 1)).exists()
    assert cache.numbers() == [2]


@pytest.mark.parametrize("how", ["cut", "without its sidecar", "with a sidecar cut short"])
def test_a_damaged_leased_shard_stays_though_the_catalog_is_lost(cache, how):
    cache.make(), cache.make()
    path = cache.layout.shard(ShardId("train", 1))
    with contextlib.closing(HeldLease(write_manifest(cache.layout, MANIFEST))):
        damage(cache, how)
        content = path.read_bytes()
        cache.stop()
        cache.layout.catalog.unlink()
        cache.start()
        for _ in range(2):
            assert path.read_bytes() == content
            live = cache.found.state.live
            assert (live[1].served, live[2].served) == (False, True)
            recover_leases(cache.layout, cache.state, now=0.0)
            assert LEASE in cache.state.leases
            cache.restart()
    cache.restart()
    going = cache.state.handle(ev.Tick(), 100.0)
    assert not path.exists() or ev.UnlinkShard(ShardId("train", 1)) in going
