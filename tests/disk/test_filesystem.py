"""Facts about the file system."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cachecd.disk import filesystem as disk
from cachecd.errors import DiskError

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw - proc proc rw
30 22 0:40 / /mnt/nfs rw,relatime - nfs4 server:/export rw,vers=4.2
31 22 0:41 / /mnt/data rw - xfs /dev/sdb rw
32 22 0:42 / /mnt/smb rw - cifs //server/share rw
33 22 0:43 / /mnt/my\040bucket rw - fuse.s3fs s3fs rw
36 22 0:46 / /mnt/goofys rw - fuse bucket rw
37 22 0:47 / /mnt/lustre rw master:1 propagate_from:2 - lustre 10.0.0.1@tcp:/l rw
38 30 0:48 / /mnt/nfs/local rw - ext4 /dev/sdc rw
39 31 0:49 / /mnt/data/hidden rw - ext4 /dev/sdd rw
40 39 0:50 / /mnt/data/hidden rw - ceph mon:/ rw
42 22 0:52 / /mnt/host rw - 9p host rw
"""


@pytest.mark.parametrize(
    ("path", "mount", "kind"),
    [
        ("/mnt/nfs/cache", "/mnt/nfs", "nfs4"),
        ("/mnt/smb/a/b/c", "/mnt/smb", "cifs"),
        ("/mnt/my bucket/x", "/mnt/my bucket", "fuse.s3fs"),
        ("/mnt/goofys/x", "/mnt/goofys", "fuse"),
        ("/mnt/lustre/x", "/mnt/lustre", "lustre"),
        ("/mnt/data/hidden/x", "/mnt/data/hidden", "ceph"),
        ("/mnt/host/x", "/mnt/host", "9p"),
        ("/mnt/data/../nfs/x", "/mnt/nfs", "nfs4"),
    ],
)
def test_a_network_file_system_is_refused_by_name(path, mount, kind):
    with pytest.raises(DiskError) as raised:
        disk.refuse_network_filesystem(Path(path), MOUNTS)
    assert str(raised.value) == (
        f"{path} is on the network file system {kind} (mounted at {mount}), where locks and "
        "renames are unreliable; set cache.dir to a directory on a local disk"
    )


@pytest.mark.parametrize("path", ["/", "/mnt/data/cache", "/mnt/nfs/local/x", "/mnt/nfsx"])
def test_a_local_file_system_is_accepted(path):
    disk.refuse_network_filesystem(Path(path), MOUNTS)


def test_a_link_into_a_network_file_system_is_resolved(tmp_path):
    (tmp_path / "here").symlink_to("/mnt/nfs")
    with pytest.raises(DiskError, match="nfs4"):
        disk.refuse_network_filesystem(tmp_path / "here" / "cache", MOUNTS)


def test_the_mount_table_of_this_machine_can_be_read(tmp_path):
    disk.refuse_network_filesystem(tmp_path / "not" / "yet")


def test_allocated_agrees_with_du(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(b"x" * 10_000)
    (tmp_path / "a" / "b" / "empty").touch()
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 30)
    with open(tmp_path / "reserved", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
    (tmp_path / "a" / "out").symlink_to("/")
    (tmp_path / "a" / "gone").symlink_to("/nowhere")
    du = subprocess.run(["du", "-s", "--block-size=1", tmp_path], capture_output=True, check=True)
    assert sum(disk.walk(tmp_path)) == int(du.stdout.split()[0])
    assert sum(disk.walk(tmp_path / "a" / "one")) == (tmp_path / "a" / "one").stat().st_blocks * 512
    assert sum(disk.walk(tmp_path / "nowhere")) == 0


def test_total_bytes_is_that_of_the_nearest_existing_parent(tmp_path):
    found = os.statvfs(tmp_path)
    assert disk.total_bytes(tmp_path / "not" / "yet") == found.f_blocks * found.f_frsize
