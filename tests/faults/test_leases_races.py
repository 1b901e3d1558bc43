"""Promise 1 between two instructions: manifests that come and go while somebody locks them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cachecd.daemon.disk_work import manifest_of
from cachecd.disk.layout import Layout
from cachecd.disk.leases import end_lease, write_manifest
from cachecd.policy.values import Lease
from cachecd_client.errors import LeaseLostError
from cachecd_client.lease.held_lease import HeldLease
from cachecd_client.protocol import decode_manifest, encode_manifest


@pytest.fixture
def layout(tmp_path) -> Layout:
    (tmp_path / "cache" / "leases").mkdir(parents=True)
    return Layout(tmp_path / "cache")


LEASE = "train.0.ab.x1"


def write(layout: Layout, epoch: int = 0) -> Path:
    """Writes the lease's manifest for an epoch. Returns its path."""
    lease = Lease(
        *(LEASE, "train", "g", "job", epoch, 2, ((0, 0, 1), (1, 0, 0)), ((1, 3),)),
        *(4, 400, "f", 17, 5, False, 1, 7),
    )
    write_manifest(layout, LEASE, encode_manifest(manifest_of(lease, {})))
    return layout.manifest(LEASE)


def test_a_lease_that_was_locked_is_the_one_on_disk_however_often_manifests_come_and_go(layout):
    """A daemon that writes and deletes one name as fast as it can, and a trainer that locks it."""
    path = layout.manifest(LEASE)
    ended = threading.Event()
    held: set[int] = set()
    wrong: list[str] = []

    def hold() -> None:
        while not ended.is_set():
            try:
                lease = HeldLease(path)
            except LeaseLostError:
                continue
            epoch = lease.manifest.epoch
            held.add(epoch)
            if end_lease(layout, LEASE) or not path.exists():
                wrong.append(f"epoch {epoch} was deleted under its holder")
            elif decode_manifest(path.read_bytes()).epoch != epoch:
                wrong.append(f"epoch {epoch} was replaced under its holder")
            lease.close()

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    written = 0
    while (written < 50 or len(held) < 10) and not wrong:
        if not path.exists():
            write(layout, written)
            written += 1
        end_lease(layout, LEASE)
    ended.set()
    holder.join(10)
    assert not wrong
    assert end_lease(layout, LEASE)
