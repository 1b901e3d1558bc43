"""The file system of the cache directory: whether it may be used, and how full it is."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cachecd.errors import DamagedError, DiskError
from cachecd.quantities import Percent

MOUNT_TABLE = Path("/proc/self/mountinfo")

# On these another machine may hold or break a lock, and a rename or an fsync may not be durable when it
# returns: shards would not stay whole.
_NETWORK = frozenset(
    [
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre", "ncpfs"),
        *("nfs", "nfs4", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs"),
    ]
)
# A FUSE file system may be remote, as sshfs, s3fs and gcsfuse are. These are local.
_LOCAL_FUSE = frozenset({"fuse.bindfs", "fuse.fuse-overlayfs", "fuse.mergerfs"})
# Flags of `os.open`: a link or a pipe in the place of a file is never followed, and never waited for.
CAREFULLY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def open_carefully(path: str, flags: int) -> int:
    """An `opener` of `open` that adds CAREFULLY. OSError."""
    return os.open(path, flags | CAREFULLY)


def regular_size(path: Path) -> int:
    """Returns the size of a regular file. DamagedError for anything else of this name. OSError."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise DamagedError(f"{path} is not a regular file: remove it")
    return found.st_size


@contextmanager
def refusing(doing: str) -> Iterator[None]:
    """Turns an OSError within into a DiskError that begins with `doing` and has it as __cause__."""
    try:
        yield
    except OSError as error:
        raise DiskError(f"{doing}: {error.strerror or error}") from error


def refuse_network_filesystem(path: Path, mount_table: str | None = None) -> None:
    """DiskError, naming mount and type, if `path` lies, or would lie, on a network file system.

    `path` need not exist: its nearest existing parent decides. `mount_table` is the text of
    /proc/self/mountinfo.
    """
    table = (
        MOUNT_TABLE.read_text("utf-8", "surrogateescape") if mount_table is None else mount_table
    )
    mount, kind = _mount_of(os.path.realpath(path), table)
    if kind in _NETWORK or (kind.split(".")[0] == "fuse" and kind not in _LOCAL_FUSE):
        raise DiskError(
            f"{path} is on the network file system {kind} (mounted at {mount}), where locks and "
            "renames cannot be relied on; set cache.dir to a directory on a local disk"
        )


def _mount_of(path: str, table: str) -> tuple[str, str]:
    """(mount point, file system type) of an absolute path without links."""
    innermost = ("/", "")
    for line in table.splitlines():
        fields, _, rest = line.partition(" - ")
        # The kernel writes blank, tab, newline and backslash as octal escapes.
        mount = fields.split(" ")[4]
        for code, char in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
            mount = mount.replace(code, char)
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        # A later mount on the same point hides the earlier one.
        if inside and len(mount) >= len(innermost[0]):
            innermost = (mount, rest.split(" ")[0])
    return innermost


def walk(path: Path) -> Iterator[int]:
    """Yields the allocated bytes of everything at and under `path`, directories included.

    Links are not followed. Files that vanish meanwhile, or do not exist, count nothing.
    """
    todo = [os.fspath(path)]
    while todo:
        here = todo.pop()
        with contextlib.suppress(FileNotFoundError):
            yield os.lstat(here).st_blocks * 512
            # `path` itself may be a file.
            with contextlib.suppress(NotADirectoryError), os.scandir(here) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    else:
                        yield block_bytes(entry)


def block_bytes(entry: os.DirEntry[str] | Path) -> int:
    """The allocated bytes of a file or directory itself; 0 if it has vanished."""
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return 0


def total_bytes(path: Path) -> int:
    """Size of the whole file system of `path` (or of its nearest existing parent)."""
    while not path.exists():
        path = path.parent
    with refusing(f"cannot read the size of the file system of {path}"):
        status = os.statvfs(path)
    return status.f_blocks * status.f_frsize


def limit_bytes(limit: int | Percent, path: Path) -> int:
    """`cache.limit` in bytes, for a cache directory at `path`. DiskError."""
    return limit.of(total_bytes(path)) if isinstance(limit, Percent) else limit


def free_bytes(path: Path) -> int:
    """Returns the free bytes of the file system of `path` for this user (without root's reserve)."""
    with refusing(f"cannot read the free space of the file system of {path}"):
        status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def inodes(path: Path) -> tuple[int, int]:
    """Returns (all, free) inodes of the file system of `path`; all is 0 if the file system does not count
    them."""
    with refusing(f"cannot read the free space of the file system of {path}"):
        status = os.statvfs(path)
    return status.f_files, status.f_favail


def sync_directory(path: Path) -> None:
    """Makes created, renamed and removed names in `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
