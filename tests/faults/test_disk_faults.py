"""A disk that refuses operations: ingest, leases and the daemon meanwhile, and the files afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.e2e.daemons import wait_until
from tests.e2e.inventory import generation, inventory
from tests.faults.disk import FaultyDisk
from tests.faults.rotating import Rotating

GENERATION = "datasets/train/*"
SHARDS = GENERATION + "/shards"
TMP, SHARD = SHARDS + "/??????????.new", SHARDS + "/??????????.tfrecord"
SIDECAR, STATE = TMP + ".idx", GENERATION + "/state.json"
LEASE, NEW = "leases/train.*.json", "leases/train.*.json.new"

INGEST, LEASES, NOTHING = "ingest stops", "sets are repeated", "nothing stops"


@dataclass(frozen=True)
class Fault:
    """An operation that is refused at a place, and what that stops: for all else goes on."""

    operation: str
    place: str
    stops: str
    code: int = errno.EIO

    def __str__(self) -> str:
        return f"{self.operation} {self.place} {errno.errorcode[self.code]}"


# Every place at which the daemon or a sampler asks something of the disk while shards come and go: here
# one of each kind, whose neighbours go the same way through the code; all in the long form.
FAULTS = [
    Fault("allocate", TMP, INGEST, errno.ENOSPC),
    Fault("sync", TMP, INGEST),
    Fault("create", SIDECAR, INGEST, errno.ENOSPC),
    Fault("rename", SHARD + ".idx", INGEST),
    Fault("rename", SHARD, INGEST),
    Fault("sync", SHARDS, INGEST),
    Fault("unlink", SHARD + ".idx", INGEST, errno.EROFS),
    Fault("rename", STATE, INGEST),
    Fault("write", NEW, LEASES, errno.ENOSPC),
    Fault("unlink", LEASE, NOTHING),
    Fault("*", "leases/*", LEASES, errno.EROFS),
    Fault("*", "*", LEASES, errno.EROFS),
]
LONG = "CACHECD_LONG" in os.environ
if LONG:
    FAULTS += [
        *(Fault(operation, TMP, INGEST) for operation in ("create", "write", "truncate")),
        *(Fault(operation, SIDECAR, INGEST) for operation in ("write", "sync", "open", "read")),
        *(Fault(operation, STATE + ".new", INGEST) for operation in ("create", "write", "sync")),
        *(Fault("*", place, INGEST) for place in (TMP + "*", SHARDS + "/*", STATE + "*")),
        *(Fault(operation, NEW, LEASES) for operation in ("create", "*")),
        Fault("open", SHARDS, INGEST),
        Fault("unlink", SHARD, INGEST),
        Fault("rename", LEASE, LEASES),
        Fault("open", LEASE, NOTHING),
    ]
    codes = (errno.EIO, errno.ENOSPC, errno.EROFS)
    FAULTS = [replace(fault, code=code) for fault in FAULTS for code in codes]


@pytest.fixture(scope="module")
def disk(tmp_path_factory) -> FaultyDisk:
    folder = tmp_path_factory.mktemp("faulty")
    return FaultyDisk(folder / "control", root=folder / "d" / "cache")


@pytest.fixture(scope="module")
def rotating(disk, tmp_path_factory) -> Iterator[Rotating]:
    folder = disk.root.parent
    with Rotating.started(folder, disk.environ) as rotating:
        yield rotating


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_what_a_disk_refuses_stops_only_that_and_goes_on_by_itself(rotating, disk, fault, caplog):
    what = str(fault)
    with disk.failing(fault.operation, f"{disk.root}/{fault.place}", fault.code) as rule:
        if fault.stops == LEASES:
            assert rotating.repeats(), what
            assert rotating.repeats(), what
            assert os.strerror(fault.code) in caplog.text, what
        else:
            hit = disk.hits
            wait_until(lambda: rotating.turn() or hit(rule), 30, what)
            if fault.stops == INGEST:
                wait_until(lambda: rotating.turn() or stopped(rotating), 30, what)
    rotating.rotates(what)
    rotating.check(what)


def stopped(rotating: Rotating) -> str:
    status = rotating.status()
    return status["cache"]["stopped"] or status["datasets"]["train"]["stopped"]


@pytest.mark.parametrize("name", ["", "shards", "leases"])
def test_what_was_moved_away_or_replaced_is_neither_forgotten_nor_written_into(
    rotating, disk, name
):
    there = generation(disk.root) / name if name == "shards" else disk.root / name
    away = disk.root.parent / "away"
    before = inventory(disk.root)
    there.rename(away)
    wait_until(lambda: "was removed while the daemon was running" in rotating.stopped)
    if name:
        there.mkdir()
        wait_until(lambda: "was replaced while the daemon was running" in rotating.stopped)
        assert "was replaced" in rotating.waits()
        assert list(there.iterdir()) == []
        there.rmdir()
    else:
        assert "was removed" in rotating.waits()
    away.rename(there)
    assert {n: s.same for n, s in inventory(disk.root).items()}.items() >= {
        n: s.same for n, s in before.items()
    }.items()
    rotating.rotates(name)
    rotating.check(name)


def test_a_start_that_cannot_read_its_disk_fails_and_deletes_nothing(disk, rotating, tmp_path):
    """Last of those that use it: the daemon is started anew."""
    daemon = rotating.daemon
    rotating.held.release()
    # A manifest that a start finds makes the next epoch a boundary, at which shards are retired.
    wait_until(lambda: not list((disk.root / "leases").glob("*.json")), what="the lease ends")
    assert daemon.terminate() == 0
    before = inventory(disk.root)
    for operation, place in STARTS:
        if place.endswith(".idx"):
            (generation(disk.root) / "snapshot").unlink(missing_ok=True)
        with disk.failing(operation, f"{disk.root}/{place}", errno.EIO):
            found = daemon.run(timeout=20)
        assert found.returncode == 1, (operation, place, found.stderr)
        assert "Traceback" not in found.stderr, (operation, place, found.stderr)
        assert str(disk.root) in found.stderr
        after = inventory(disk.root)
        assert {n: s.same for n, s in after.items()} == {n: s.same for n, s in before.items()}
    daemon.start()
    with daemon.connect() as rotating.cache:
        rotating.held = rotating.cache.acquire("train", rotating.epoch + 1, job="j", timeout=30)
        assert set(map(Path, rotating.held.files)) <= {s.path for s in before.values()}
        assert len(rotating.held.files) == len(before)


# What a start reads; of shards the sidecars alone, and only without a snapshot.
STARTS = [("read", STATE), ("read", GENERATION + "/generation.json"), ("read", SHARD + ".idx")]
if LONG:
    STARTS = [
        *(("read", GENERATION + "/listing.sqlite"), ("create", "lock")),
        *STARTS,
        ("open", SHARD + ".idx"),
    ]
