"""The file system of the cache directory: whether it may be used, and how full it is."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cachecd.errors import DamagedError, DiskError

MOUNT_TABLE = Path("/proc/self/mountinfo")

# On these file systems, another machine may hold or break a lock, and a rename or an fsync may not be
# durable when it returns.
_NETWORK = frozenset(
    [
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre", "ncpfs"),
        *("nfs", "nfs4", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs"),
    ]
)
# Most FUSE file systems, such as sshfs, s3fs and gcsfuse, are remote. These are local.
_LOCAL_FUSE = frozenset({"fuse.bindfs", "fuse.fuse-overlayfs", "fuse.mergerfs"})
# Flags of `os.open`: it never follows a link, and never waits for a pipe.
CAREFULLY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def open_carefully(path: str, flags: int) -> int:
    """An `opener` for `open` that adds the flags CAREFULLY."""
    return os.open(path, flags | CAREFULLY)


def regular_size(path: Path) -> int:
    """Returns the size of a regular file. DamagedError if the path is anything else. OSError."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise DamagedError(f"{path} is not a regular file: remove it")
    return status.st_size


@contextmanager
def refusing(failure: str) -> Iterator[None]:
    """Turns an OSError in the block into a DiskError. Its message begins with `failure`, and its
    `__cause__` is the OSError."""
    try:
        yield
    except OSError as error:
        raise DiskError(f"{failure}: {error.strerror or error}") from error


def refuse_network_filesystem(path: Path, mount_table: str | None = None) -> None:
    """DiskError if `path` is on a network file system; the message names the mount and its type.

    If `path` does not exist, its nearest existing parent counts. `mount_table`: the text of
    /proc/self/mountinfo.
    """
    table = (
        MOUNT_TABLE.read_text("utf-8", "surrogateescape") if mount_table is None else mount_table
    )
    mount, kind = _mount_of(os.path.realpath(path), table)
    if kind in _NETWORK or (kind.split(".")[0] == "fuse" and kind not in _LOCAL_FUSE):
        raise DiskError(
            f"{path} is on the network file system {kind} (mounted at {mount}), where locks and "
            "renames are unreliable; set cache.dir to a directory on a local disk"
        )


def _mount_of(path: str, table: str) -> tuple[str, str]:
    """Returns the mount point and the file system type of an absolute path without links."""
    innermost = ("/", "")
    for line in table.splitlines():
        fields, _, rest = line.partition(" - ")
        # The kernel writes a space, tab, newline or backslash as an octal escape.
        mount = fields.split(" ")[4]
        for code, char in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
            mount = mount.replace(code, char)
        is_inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        # A later mount on the same point hides the earlier mount.
        if is_inside and len(mount) >= len(innermost[0]):
            innermost = (mount, rest.split(" ")[0])
    return innermost


def walk(path: Path) -> Iterator[int]:
    """Yields the allocated bytes of `path`, and of each file and directory in it. Does not follow links.
    Files that vanish meanwhile do not count."""
    folders = [os.fspath(path)]
    while folders:
        folder = folders.pop()
        with contextlib.suppress(FileNotFoundError):
            yield os.lstat(folder).st_blocks * 512
            # `path` itself may be a file.
            with contextlib.suppress(NotADirectoryError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        yield block_bytes(entry)


def block_bytes(entry: os.DirEntry[str] | Path) -> int:
    """Returns the allocated bytes of a file, or of a directory without its content. Returns 0 if it
    vanished."""
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return 0


def total_bytes(path: Path) -> int:
    """Returns the size of the file system of `path`, or of its nearest existing parent. DiskError."""
    while not path.exists():
        path = path.parent
    with refusing(f"cannot read the size of the file system of {path}"):
        status = os.statvfs(path)
    return status.f_blocks * status.f_frsize


def free_bytes(path: Path) -> int:
    """Returns the bytes that this user may still write to the file system of `path`. DiskError."""
    with refusing(f"cannot read the free space of the file system of {path}"):
        status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def inodes(path: Path) -> tuple[int, int]:
    """Returns the number of all inodes and of free inodes of the file system of `path`. The first number
    is 0 if the file system does not count inodes. DiskError."""
    with refusing(f"cannot read the free space of the file system of {path}"):
        status = os.statvfs(path)
    return status.f_files, status.f_favail


def sync_directory(path: Path) -> None:
    """Makes the creation, renaming and removal of files in `path` durable. OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
