"""What a start makes of the manifests it finds, which nobody synced."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cachecd.dataset import DatasetState
from cachecd.layout import Layout
from cachecd.leases import write_manifest
from cachecd.ledger import Ledger
from cachecd.model import Lease, Shard, ShardId
from cachecd.plan import Plan
from cachecd.recovery import manifest_of, recover_leases
from cachecd.rules import DatasetRules
from cachecd.state import State
from cachecd_client.lease import HeldLease
from cachecd_client.protocol import Manifest, encode_manifest
from tests.world import Units

LEASE = "train.0.ab12cd34.x1"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "leases").mkdir()
    return Layout(tmp_path)


@pytest.fixture
def state() -> State:
    """A daemon's that found shards 1 to 3."""
    found = State(Ledger(1 << 30, 1 << 16), 1 << 16, 1, "b")
    rules = DatasetRules("train", "g", first=1)
    found.add_dataset(DatasetState(rules, Plan("train", "g", Units([1]), 0, 1 << 16)))
    for number in (1, 2, 3):
        found.adopt_shard(Shard(ShardId("train", number), "g", 1, 100, 4096), retired=False)
    return found


def manifest(*shards: list[int]) -> Manifest:
    return Manifest(
        1, LEASE, "train", "job", 0, "g", [*shards], 3, 300, 17, None, False, "ab", {"version": 1}
    )


def holding(path: Path) -> AbstractContextManager[HeldLease]:
    from contextlib import closing

    return closing(HeldLease(path))


WHOLE = encode_manifest(manifest([1, 3]))


@pytest.mark.parametrize(
    "torn", [b"", bytes(len(WHOLE)), WHOLE[:1], WHOLE[:-1], WHOLE[:40] + bytes(99)]
)
def test_a_manifest_torn_by_a_power_failure_is_removed_and_said_so(layout, state, torn):
    path = layout.manifest(LEASE)
    path.write_bytes(torn)
    (line,) = recover_leases(layout, state, now=0.0)
    assert str(path) in line
    assert "nobody holds it: removed" in line
    assert not path.exists()
    assert state.leases == {}


def test_a_torn_manifest_that_is_held_keeps_every_shard(layout, state):
    path = write_manifest(layout, manifest([1, 3]))
    with holding(path):
        with path.open("r+b") as file:
            file.truncate(10)
        (line,) = recover_leases(layout, state, now=0.0)
        assert "(held)" in line
        assert path.exists()
        assert state.leases[LEASE].lease.shards == ((1, 3),)


@pytest.mark.parametrize("shards", [[[1, 4]], [[4, 4]], [[1, 1], [3, 9]]])
def test_a_lease_of_shards_that_are_gone_is_not_granted_again(layout, state, shards):
    """Its deletion was lost in a power failure, that of the shards was not."""
    path = write_manifest(layout, manifest(*shards))
    (line,) = recover_leases(layout, state, now=0.0)
    assert "names shards that are gone" in line
    assert not path.exists()
    assert state.leases == {}


def test_a_lease_of_shards_that_are_gone_stays_while_it_is_held(layout, state):
    path = write_manifest(layout, manifest([1, 4]))
    with holding(path):
        assert recover_leases(layout, state, now=0.0) == []
        assert path.exists()
        assert LEASE in state.leases


def test_a_whole_manifest_that_nobody_holds_is_taken_up_for_its_grace(layout, state):
    path = write_manifest(layout, manifest([1, 1], [3, 3]))
    assert recover_leases(layout, state, now=0.0) == []
    assert path.exists()
    assert state.leases[LEASE].stands_without_lock(now=1.0)


SHARD = 1 << 10


def window(shards: int, of: int | None) -> int | None:
    lease = Lease(
        "x", "train", "job", 0, "g", ((1, 3), (7, shards + 3)), 9, shards * SHARD, 0, False, ""
    )
    return manifest_of(lease, {("train", "g"): {"version": 1}}, of).window


@pytest.mark.parametrize("of", [None, 10_000_000 * SHARD])
def test_the_window_of_a_lease_is_of_no_more_shards_than_a_process_can_map(of):
    assert window(200_000, of) == 16_384 * SHARD


def test_a_set_that_fits_into_the_window_of_the_configuration_has_none():
    assert window(16_384, 16_384 * SHARD) is None
    assert window(16_384, 16_384 * SHARD - 1) == 16_384 * SHARD - 1
