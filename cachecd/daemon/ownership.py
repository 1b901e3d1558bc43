"""One daemon for each cache directory, one owner for each socket. A second daemon fails at once, with the
name of the owner.

The proof is an open-file-description lock, which the operating system ends with its holder, on a small file
whose text names the holder. Samplers, started by exec, do not inherit it.
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

_HOLDER = 512


@contextlib.contextmanager
def _owned(resource: str, lock: Path, endpoint: str) -> Iterator[None]:
    """Holds a lock until the end of the block, or of the process. Never blocks. InUseError names the
    holder; DiskError if the lock file cannot be made."""
    with refusing(f"cannot lock {resource} with {lock}"):
        while (fd := _lock(resource, lock)) is None:
            pass
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "socket": endpoint}
        # In place, and padded: a disk that is full to the last byte takes what needs no new block.
        with contextlib.suppress(OSError):
            os.pwrite(fd, json.dumps(holder).encode().ljust(_HOLDER) + b"\n", 0)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a read-only disk: the next holder takes the file over
            lock.unlink()
        os.close(fd)


def _lock(resource: str, lock: Path) -> int | None:
    """Locks the file. None if its last holder was just unlinking it."""
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | CAREFULLY, 0o600)
    try:
        if not try_lock(fd, fcntl.F_WRLCK):
            raise InUseError(f"{resource} is in use by {_holder(os.pread(fd, 4096, 0))}")
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(lock)):
                # Whoever may open the file may lock it, and so prevent the next start.
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
        return "another cachecd that is just starting"


def claim_directory(lock: Path, endpoint: str) -> AbstractContextManager[None]:
    """Makes this process the one daemon of a cache directory. `lock` is Layout.lock."""
    return _owned(f"cache directory {lock.parent}", lock, endpoint)


@contextlib.contextmanager
def claim_socket(path: Path) -> Iterator[None]:
    """Makes this process the owner of the socket `path`, and removes a socket that a dead daemon left.

    The socket's directory must exist (see make_private_directory). ConfigError if the path is too long or
    is not a socket; InUseError if a process answers there.
    """
    length = path_length(path)
    if length > MAX_PATH:
        raise ConfigError(
            f"the socket's path {path} has {length} bytes, the system takes at most "
            f"{MAX_PATH}; set server.endpoint to a shorter one, for example ipc:///run/cachecd/cachecd.sock"
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
    # A program without the lock may listen too: a foreign one, or a daemon in another mount of this file.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        failure = probe.connect_ex(os.fspath(path))
        if failure in (0, errno.EAGAIN):  # EAGAIN: alive, its backlog is full
            owner = "a process" if failure else f"pid {peer_pid(probe)}"
            raise InUseError(f"socket {path} is in use by {owner}")
    if failure != errno.ECONNREFUSED:
        raise DiskError(f"cannot use the socket {path}: {os.strerror(failure)}")
    with refusing(f"cannot remove the stale socket {path}"):
        path.unlink(missing_ok=True)


def open_socket_to_group(path: Path) -> None:
    """Allows the group to connect, once `path` is bound: connecting needs write permission, which the umask
    may have removed. The directory's mode keeps all other users out."""
    with refusing(f"cannot set the mode of the socket {path}"):
        path.chmod(0o660)


@contextlib.contextmanager
def made(path: Path, make: Callable[[Path], None]) -> Iterator[None]:
    """Calls `make` to make a directory. At the end removes the directory and those parents that were
    missing before, if they are empty."""
    new = [p for p in (path, *path.parents) if not p.exists()]
    try:
        make(path)
        yield
    finally:
        for each in new:
            with contextlib.suppress(OSError):  # not empty: something uses it
                each.rmdir()


def make_cache_directory(path: Path) -> None:
    """Makes cache.dir. DiskError if it cannot be made or written."""
    with refusing(f"cannot create cache.dir {path}"):
        path.mkdir(mode=0o750, parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise DiskError(f"cache.dir {path} cannot be written by uid {os.geteuid()}")


def make_private_directory(path: Path) -> None:
    """Makes `path` (and its parents) if it is missing, for this user and group alone: mode 0750.

    DiskError if it cannot be made, or if the present directory belongs to another user or is open to all:
    whoever can reach the control socket can read everything that is cached.
    """
    with refusing(
        f"cannot create the directory {path} for the socket (set server.endpoint, or XDG_RUNTIME_DIR, to a "
        "directory that you can write)"
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(0o750)
            # The umask may have taken the group's bits away; a set-group-ID parent's stay.
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
            f"into a directory of its own, for example {path / 'cachecd' / 'cachecd.sock'}"
        )
    if mode & 0o027:
        raise DiskError(
            f"{path} has mode {mode:04o}, expected at most 0750; put the socket into a "
            f"directory of its own, or run: chmod 750 {path}"
        )
