"""Ensures that one daemon owns a cache directory and a socket. A second daemon fails at once, and its error
names the owner.

The owner holds an open-file-description lock on a small file, whose text names the owner. The operating
system releases the lock when the owner ends. Workers are started by exec, so they do not inherit the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from cachecd.disk.filesystem import CAREFULLY, refusing
from cachecd.errors import ConfigError, DiskError, InUseError
from cachecd_client.locks import try_lock
from cachecd_client.sockets import MAX_PATH, path_length, peer_pid

_HOLDER = 512  # bytes of the text that names the holder


@contextlib.contextmanager
def _owned(resource: str, lock: Path, endpoint: str) -> Iterator[None]:
    """Holds a lock until the block or the process ends. Never blocks. InUseError names the holder.
    DiskError if the lock file cannot be created."""
    with refusing(f"cannot lock {resource} with {lock}"):
        while (fd := _lock(resource, lock)) is None:
            pass
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "socket": endpoint}
        # The text is padded and written in place, so a full disk needs no new block for it.
        with contextlib.suppress(OSError):
            os.pwrite(fd, json.dumps(holder).encode().ljust(_HOLDER) + b"\n", 0)
    try:
        yield
    finally:
        with contextlib.suppress(
            OSError
        ):  # on a read-only disk, the file stays for the next holder
            lock.unlink()
        os.close(fd)


def _lock(resource: str, lock: Path) -> int | None:
    """Locks the file. Returns None if the previous holder unlinked the file meanwhile."""
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | CAREFULLY, 0o600)
    try:
        if not try_lock(fd, fcntl.F_WRLCK):
            raise InUseError(f"{resource} is in use by {_holder(os.pread(fd, 4096, 0))}")
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(lock)):
                # Only for this user, because a user who can open the file can lock it, and prevent the
                # next start.
                os.fchmod(fd, 0o600)
                return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _holder(text: bytes) -> str:
    try:
        holder = json.loads(text)
        return f"cachecd pid {holder['pid']} on {holder['host']} (socket {holder['socket']})"
    except (ValueError, KeyError, TypeError):
        return "another cachecd, which is just starting"


def claim_directory(lock: Path, endpoint: str) -> AbstractContextManager[None]:
    """Makes this process the only daemon of a cache directory. `lock`: Layout.lock. InUseError;
    DiskError."""
    return _owned(f"cache directory {lock.parent}", lock, endpoint)


@contextlib.contextmanager
def claim_socket(path: Path) -> Iterator[None]:
    """Makes this process the owner of the socket `path`, and removes a socket that a dead daemon left.

    The directory of the socket must exist (see `make_private_directory`). ConfigError if the path is too
    long, or is not a socket. InUseError if a process listens there.
    """
    length = path_length(path)
    if length > MAX_PATH:
        raise ConfigError(
            f"the socket's path {path} has {length} bytes, the system allows at most "
            f"{MAX_PATH}; set server.endpoint to a shorter path, for example ipc:///run/cachecd/cachecd.sock"
        )
    lock = path.with_name(path.name + ".lock")
    with _owned(f"socket {path}", lock, f"ipc://{path}"):
        _remove_stale(path)
        yield


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists and is not a socket; set server.endpoint to another path")
    # A process without the lock may listen there: another program, or a daemon with another lock file.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        failure = probe.connect_ex(os.fspath(path))
        if failure in (0, errno.EAGAIN):  # EAGAIN: the process is alive, but its backlog is full
            owner = "a process" if failure else f"pid {peer_pid(probe)}"
            raise InUseError(f"socket {path} is in use by {owner}")
    if failure != errno.ECONNREFUSED:
        raise DiskError(f"cannot use the socket {path}: {os.strerror(failure)}")
    with refusing(f"cannot remove the stale socket {path}"):
        path.unlink(missing_ok=True)


def open_socket_to_group(path: Path) -> None:
    """Allows the group to connect to the bound socket `path`. Connecting needs write permission, which the
    umask may have removed. The mode of the directory excludes all other users."""
    with refusing(f"cannot set the mode of the socket {path}"):
        path.chmod(0o660)


@contextlib.contextmanager
def made(path: Path, make: Callable[[Path], None]) -> Iterator[None]:
    """Calls `make` to create a directory. When the `with` block ends, removes this directory and its
    parents, if they were missing before and are empty."""
    new = [p for p in (path, *path.parents) if not p.exists()]
    try:
        make(path)
        yield
    finally:
        for each in new:
            with contextlib.suppress(OSError):  # not empty: something uses it
                each.rmdir()


def make_cache_directory(path: Path) -> None:
    """Creates cache.dir if it is missing. DiskError if it cannot be created or written."""
    with refusing(f"cannot create cache.dir {path}"):
        path.mkdir(mode=0o750, parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise DiskError(f"cache.dir {path} cannot be written by uid {os.geteuid()}")


def make_private_directory(path: Path) -> None:
    """Creates `path` and its parents if they are missing. Only this user and group may enter `path` (mode
    0750).

    DiskError if the directory cannot be created, belongs to another user, or is open to other users. Every
    process that can reach the control socket can read all cached records.
    """
    with refusing(
        f"cannot create the directory {path} for the socket (set server.endpoint, or XDG_RUNTIME_DIR, to a "
        "directory that you can write)"
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(0o750)
            # The umask may have removed the bits of the group. A set-group-ID bit stays.
            path.chmod(stat.S_IMODE(path.stat().st_mode) & stat.S_ISGID | 0o750)
        except FileExistsError:
            pass
        status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        raise DiskError(
            f"{path} is not a directory; the control socket needs a private directory: set server.endpoint"
        )
    if status.st_uid != os.geteuid():
        raise DiskError(
            f"{path} belongs to uid {status.st_uid}, not to this user (uid {os.geteuid()}); put the socket "
            f"into its own directory, for example {path / 'cachecd' / 'cachecd.sock'}"
        )
    if mode & 0o027:
        raise DiskError(
            f"{path} has mode {mode:04o}, expected at most 0750; put the socket into a "
            f"separate directory, or run: chmod 750 {path}"
        )
