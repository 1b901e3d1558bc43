"""Promise 1, the daemon's side, with real processes that hold, stop, fork and die."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cachecd.errors import DiskError
from cachecd.layout import Layout
from cachecd.leases import end, probe, read_manifests, write_manifest
from cachecd_client.errors import ProtocolVersionError
from cachecd_client.protocol import Manifest, decode_manifest, encode_manifest

# Opens and locks the manifest as a trainer does, then lives until its stdin ends.
HOLDER = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_CLOEXEC)
fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))
if "fork" in sys.argv and (child := os.fork()):
    print(child, flush=True)
    os._exit(0)
elif "fork" not in sys.argv:
    print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def layout(tmp_path):
    (tmp_path / "leases").mkdir()
    return Layout(tmp_path)


@pytest.fixture
def hold():
    holders: list[subprocess.Popen[str]] = []

    def start(path: Path, *words: str) -> tuple[subprocess.Popen[str], str]:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        holders.append(holder)
        assert holder.stdout is not None
        return holder, holder.stdout.readline().strip()

    yield start
    for holder in holders:
        holder.kill()
        holder.communicate()


def manifest(lease: str = "train.0.ab12cd34.x1", **changes: object) -> Manifest:
    fields = {
        "version": 1,
        "lease": lease,
        "dataset": "train",
        "job": "resnet-7",
        "epoch": 0,
        "generation": "g1",
        "shards": [[1, 3], [7, 7]],
        "num_records": 4,
        "num_bytes": 400,
        "seed": 17,
        "window": None,
        "pinned": False,
        "fingerprint": "abcd",
        "schema": {"version": 1, "features": []},
    }
    return Manifest(**{**fields, **changes})  # type: ignore[arg-type]


def soon(condition: Callable[[], bool], seconds: float = 1.0) -> bool:
    """Whether it comes true within what promise 1 allows."""
    deadline = time.monotonic() + seconds
    while not (true := condition()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return true


def test_a_manifest_survives_a_restart_as_it_was_written(layout):
    written = [manifest("train.0.a.x1"), manifest("train.1.a.x2", epoch=1, window=1 << 30)]
    assert [write_manifest(layout, m) for m in written] == [
        layout.manifest(m.lease) for m in written
    ]
    assert read_manifests(layout) == (written, [])
    assert written[0].numbers() == [1, 2, 3, 7]


@pytest.mark.parametrize("umask", [0o027, 0o077, 0o000])
def test_the_group_can_read_a_manifest_and_nobody_else(layout, umask):
    old = os.umask(umask)
    try:
        path = write_manifest(layout, manifest())
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_manifest_is_never_replaced(layout):
    path = write_manifest(layout, manifest())
    with pytest.raises(FileExistsError, match="on disk already"):
        write_manifest(layout, manifest(epoch=9))
    assert decode_manifest(path.read_bytes()).epoch == 0


def test_a_disk_that_refuses_leaves_nothing_behind(layout):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(DiskError, match=r"cannot write the lease .*: File too large"):
            write_manifest(layout, manifest())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(layout.leases.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0" * 100,
        b"[]",
        b"null",
        b'{"version": 1}',
        encode_manifest(manifest())[:-20],
        encode_manifest(manifest("another.lease")),
        encode_manifest(manifest(version=2)),
        encode_manifest(manifest(shards=[[3, 1]])),
        encode_manifest(manifest(shards=[[1, 3], [3, 4]])),
        encode_manifest(manifest(shards=[[0, 3]])),
        encode_manifest(manifest(shards=[1])),
        encode_manifest(manifest(shards=[["1", 2]])),
    ],
)
def test_a_damaged_manifest_is_reported_and_left_where_it_is(layout, hold, text):
    write_manifest(layout, good := manifest("train.5.a.x1"))
    path = layout.manifest("train.0.ab12cd34.x1")
    path.write_bytes(text)
    for held in (False, True):
        if held:
            hold(path)
        found, (damaged,) = read_manifests(layout)
        assert found == [good]
        assert (damaged.path, damaged.held) == (path, held)
        assert damaged.why
    assert path.read_bytes() == text


def test_a_start_removes_a_write_that_was_killed_and_nothing_else(layout):
    kept = write_manifest(layout, manifest())
    half = layout.leases / "train.9.a.x9.json.new"
    half.write_bytes(b'{"ver')
    unknown = layout.leases / "notes.txt"
    unknown.write_text("mine")
    read_manifests(layout)
    assert sorted(layout.leases.iterdir()) == sorted([kept, unknown])


def test_a_manifest_of_another_version_says_what_to_install(layout):
    with pytest.raises(ProtocolVersionError, match="version 2, expected 1: install"):
        decode_manifest(encode_manifest(manifest(version=2)))


def test_fields_of_a_later_minor_version_are_ignored():
    text = encode_manifest(manifest()).replace(b'{"version"', b'{"later": 1, "version"', 1)
    assert decode_manifest(text) == manifest()


def test_an_unheld_lease_ends(layout):
    path = write_manifest(layout, manifest())
    assert not probe(path)
    assert end(path)
    assert not path.exists()
    assert end(path)
    assert not probe(path)


def test_a_held_lease_cannot_be_ended_until_its_last_holder_is_gone(layout, hold):
    path = write_manifest(layout, manifest())
    before = path.read_bytes()
    (first, _), (second, _) = hold(path), hold(path)
    first.kill()
    first.wait()
    assert probe(path)
    assert not end(path)
    assert path.read_bytes() == before
    second.kill()
    assert soon(lambda: not probe(path))
    assert end(path)


def test_a_holder_that_is_stopped_still_holds(layout, hold):
    path = write_manifest(layout, manifest())
    holder, _ = hold(path)
    holder.send_signal(signal.SIGSTOP)
    try:
        assert probe(path)
        assert not end(path)
    finally:
        holder.send_signal(signal.SIGKILL)
    assert soon(lambda: not probe(path))


def test_a_lock_shared_with_a_forked_child_ends_with_the_child(layout, hold):
    path = write_manifest(layout, manifest())
    parent, child = hold(path, "fork")
    parent.wait()
    assert probe(path)
    os.kill(int(child), signal.SIGKILL)
    assert soon(lambda: not probe(path))


def test_probing_neither_keeps_a_lease_nor_ends_one(layout, hold):
    path = write_manifest(layout, manifest())
    descriptors = len(os.listdir("/proc/self/fd"))
    holder, _ = hold(path)
    for _ in range(3):
        assert probe(path)
    holder.communicate()
    assert not probe(path)
    assert end(path)
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2  # the holder's pipes


def test_who_locks_a_manifest_after_its_end_can_tell(layout):
    path = write_manifest(layout, manifest())
    fd = os.open(path, os.O_RDONLY)
    try:
        assert end(path)
        assert os.fstat(fd).st_nlink == 0
    finally:
        os.close(fd)


def test_a_link_in_the_place_of_a_manifest_is_not_followed(layout, tmp_path):
    (tmp_path / "precious").write_text("mine")
    path = layout.manifest("train.0.a.x1")
    path.symlink_to(tmp_path / "precious")
    for call in (probe, end):
        with pytest.raises(DiskError, match="symbolic link"):
            call(path)
    ((_, damaged),) = [read_manifests(layout)]
    assert [d.path for d in damaged] == [path]
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_directory_that_cannot_be_read_is_a_disk_error(tmp_path):
    with pytest.raises(DiskError, match=r"cannot read the leases in .*: No such file"):
        read_manifests(Layout(tmp_path))
