"""Manifests of leases on disk, and the holders of the leases."""

from __future__ import annotations

import fcntl
import os
import struct

import pytest
from structlog.testing import capture_logs

from cachecd.disk import leases
from cachecd.disk.layout import Layout

READ_LOCK = struct.pack("@hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)


@pytest.fixture
def layout(tmp_path):
    layout = Layout(tmp_path)
    layout.leases.mkdir()
    return layout


@pytest.fixture
def hold(layout):
    """Holds a lease as a trainer does, until the returned function is called."""
    held = []

    def lock(lease):
        fd = os.open(layout.manifest(lease), os.O_RDONLY)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, READ_LOCK)
        held.append(fd)
        return lambda: os.close(held.pop(held.index(fd)))

    yield lock
    for fd in held:
        os.close(fd)


def test_held_lease_does_not_end(layout, hold):
    leases.write_manifest(layout, "a", b"{}")
    assert not leases.probe(layout, "a").is_held
    release = hold("a")
    assert leases.probe(layout, "a").is_held
    assert not leases.end_lease(layout, "a")
    assert layout.manifest("a").read_bytes() == b"{}"
    release()
    assert leases.end_lease(layout, "a")
    assert os.listdir(layout.leases) == []
    assert leases.end_lease(layout, "a"), "there is none: it has ended"


def test_start_finds_the_holders(layout, hold):
    for name in "abc":
        leases.write_manifest(layout, name, name.encode())
    leases.mark(layout, "b", 7)
    leases.mark(layout, "b", epoch=5)
    leases.mark(layout, "b")
    for rank in (0, 11, 3):
        leases.mark(layout, "b", rank)
    leases.mark(layout, "gone", 0)
    hold("c")
    (layout.leases / "d.json.new").write_text("half")
    found = leases.find_manifests(layout)
    assert [(one.lease, one.text, one.is_held, one.held_by) for one in found] == [
        ("a", b"a", False, set()),
        ("b", b"b", False, {0, 3, 11}),
        ("c", b"c", True, set()),
    ]
    assert [one.epochs for one in found] == [set(), {5}, set()]
    assert sorted(os.listdir(layout.leases)) == ["a.json", "b.held", "b.json", "c.json"]
    assert leases.end_lease(layout, "b")
    assert sorted(os.listdir(layout.leases)) == ["a.json", "c.json"], "the mark goes too"


def test_special_file_is_named_and_not_changed(layout, tmp_path):
    leases.write_manifest(layout, "a", b"{}")
    (tmp_path / "elsewhere").write_text("a manifest of somebody")
    for suffix in (".json", ".json.new", ".held"):
        os.mkfifo(layout.leases / f"fifo{suffix}")
        (layout.leases / f"folder{suffix}").mkdir()
        (layout.leases / f"link{suffix}").symlink_to(tmp_path / "elsewhere")
    before = sorted(os.listdir(layout.leases))
    with capture_logs() as logs:
        assert [one.lease for one in leases.find_manifests(layout)] == ["a"]
    assert sorted(os.listdir(layout.leases)) == before
    named = [str(layout.leases / name) for name in before if name != "a.json"]
    assert [line["path"] for line in logs] == named


def test_group_may_read_with_any_umask(layout):
    old = os.umask(0o077)
    try:
        leases.write_manifest(layout, "a", b"{}")
    finally:
        os.umask(old)
    assert layout.manifest("a").stat().st_mode & 0o777 == 0o640
