"""Promise 1 between two instructions: manifests that come and go while somebody locks them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cachecd.layout import Layout
from cachecd.leases import end, probe, write_manifest

from cachecd_client.errors import LeaseLostError
from cachecd_client.lease import HeldLease
from cachecd_client.protocol import Manifest, decode_manifest
from tests.e2e.daemons import clean_environ, wait_until
from tests.faults.disk import FaultyDisk


@pytest.fixture
def layout(tmp_path) -> Layout:
    (tmp_path / "cache" / "leases").mkdir(parents=True)
    return Layout(tmp_path / "cache")


def manifest(epoch: int = 0) -> Manifest:
    return Manifest(
        1, "train.0.ab.x1", "train", "job", epoch, "g", [[1, 3]], 4, 400, 17, None, False, "f", {}
    )


def test_a_lease_that_was_locked_is_the_one_on_disk_however_often_manifests_come_and_go(layout):
    """A daemon that writes and deletes one name as fast as it can, and a trainer that locks it."""
    path = layout.manifest("train.0.ab.x1")
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
            if end(path) or not path.exists():
                wrong.append(f"epoch {epoch} was deleted under its holder")
            elif decode_manifest(path.read_bytes()).epoch != epoch:
                wrong.append(f"epoch {epoch} was replaced under its holder")
            lease.close()

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    written = 0
    while (written < 50 or len(held) < 10) and not wrong:
        if not path.exists():
            write_manifest(layout, manifest(written))
            written += 1
        end(path)
    ended.set()
    holder.join(10)
    assert not wrong
    assert end(path)


END = """
import sys
from pathlib import Path
from cachecd.leases import end
assert end(Path(sys.argv[1]))
"""


def ending(path: Path, disk: FaultyDisk) -> subprocess.Popen[bytes]:
    """A daemon that is stopped when it has the write lock and is about to unlink."""
    rule = disk.stop("unlink", "*/leases/*")
    process = subprocess.Popen(
        [sys.executable, "-c", END, str(path)], env=clean_environ(disk.environ)
    )
    wait_until(lambda: disk.hits(rule))
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    return process


def test_a_lease_that_is_being_deleted_is_lost_and_its_next_manifest_is_another(layout, tmp_path):
    path = write_manifest(layout, manifest(0))
    opened_before = os.open(path, os.O_RDONLY)
    with ending(path, FaultyDisk(tmp_path / "faults", layout.root)) as daemon:
        with pytest.raises(LeaseLostError, match="the daemon is deleting this lease"):
            HeldLease(path)
        daemon.send_signal(signal.SIGCONT)
        assert daemon.wait(10) == 0
    with pytest.raises(LeaseLostError, match="manifest is gone"):
        HeldLease(path)
    write_manifest(layout, manifest(1))
    held = HeldLease(path)
    assert held.manifest.epoch == 1
    assert not os.path.samestat(os.fstat(opened_before), path.stat())
    os.close(opened_before)
    held.close()


def test_a_daemon_killed_while_it_deletes_a_lease_leaves_it_whole_to_be_held(layout, tmp_path):
    path = write_manifest(layout, manifest())
    with ending(path, FaultyDisk(tmp_path / "faults", layout.root)) as daemon:
        daemon.kill()
    held = HeldLease(path)
    assert held.manifest == manifest()
    assert probe(path)
    assert not end(path)
    held.close()
    assert end(path)
