"""One daemon per cache directory, one owner per socket; the second fails at once and hears who.

The proof is an open-file-description lock, which the operating system ends with its holder, on a
small file whose text names the holder. Samplers, started by exec, do not inherit it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import struct
from pathlib import Path
from types import TracebackType

from cachecd.disk.filesystem import refusing
from cachecd.disk.locks import try_write_lock
from cachecd.errors import ConfigError, DiskError, InUseError

_CAREFULLY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_HOLDER = 512
SOCKET_PATH_BYTES = 107  # sun_path holds 108 with its NUL


class Ownership:
    """Held from construction to `close`, or to the end of the process; a context manager.

    Never blocks. InUseError names the holder; DiskError if the lock file cannot be made.
    """

    def __init__(self, what: str, lock: Path, endpoint: str) -> None:
        self._lock = lock
        with refusing(f"cannot lock {what} with {lock}"):
            while not self._take(what):
                pass
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "socket": endpoint}
            # In place, and padded: a disk that is full to the last byte takes what needs no new block.
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, json.dumps(holder).encode().ljust(_HOLDER) + b"\n", 0)

    def _take(self, what: str) -> bool:
        """Locks the file; False if its last holder was just unlinking it."""
        self._fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | _CAREFULLY, 0o600)
        try:
            if not try_write_lock(self._fd):
                raise InUseError(f"{what} is in use by {_holder(os.pread(self._fd, 4096, 0))}")
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._fd), os.stat(self._lock)):
                    # Whoever may open it may lock it, and keep the next start out.
                    os.fchmod(self._fd, 0o600)
                    return True
        except BaseException:
            os.close(self._fd)
            raise
        os.close(self._fd)
        return False

    def close(self) -> None:
        """Gives it up and removes the lock file. Idempotent."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):  # a read-only disk: the next holder takes the file over
            self._lock.unlink()
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Ownership:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _holder(text: bytes) -> str:
    try:
        found = json.loads(text)
        return f"cachecd pid {found['pid']} on {found['host']} (socket {found['socket']})"
    except (ValueError, KeyError, TypeError):
        return "another cachecd that is just starting"


def claim_directory(lock: Path, endpoint: str) -> Ownership:
    """Makes this process the one daemon of a cache directory. `lock` is Layout.lock."""
    return Ownership(f"cache directory {lock.parent}", lock, endpoint)


def claim_socket(path: Path) -> Ownership:
    """Makes this process the owner of the socket `path`, and removes one that a dead daemon left.

    Its directory must exist (see service.make_private_directory). ConfigError if the path is too long
    or is something else than a socket; InUseError if somebody answers there.
    """
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_BYTES:
        raise ConfigError(
            f"the socket's path {path} has {length} bytes, the system takes at most "
            f"{SOCKET_PATH_BYTES}; set server.endpoint to a shorter one, for example ipc:///run/cachecd/cachecd.sock"
        )
    owned = Ownership(f"socket {path}", path.with_name(path.name + ".lock"), f"ipc://{path}")
    try:
        _remove_stale(path)
    except BaseException:
        owned.close()
        raise
    return owned


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists and is not a socket; set server.endpoint to another path")
    # Who holds no lock may still listen: a foreign program, or one in another mount of this file.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        failure = probe.connect_ex(os.fspath(path))
        if failure in (0, errno.EAGAIN):  # EAGAIN: alive, its backlog is full
            raise InUseError(
                f"socket {path} is in use by {_peer(probe) if not failure else 'a process'}"
            )
    if failure != errno.ECONNREFUSED:
        raise DiskError(f"cannot use the socket {path}: {os.strerror(failure)}")
    with refusing(f"cannot remove the stale socket {path}"):
        path.unlink(missing_ok=True)


def _peer(connected: socket.socket) -> str:
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return f"pid {struct.unpack('3i', credentials)[0]}"


def open_socket_to_group(path: Path) -> None:
    """Lets the group connect, once `path` is bound: connecting takes write permission, which the
    umask may have taken away. The directory's mode keeps everybody else out."""
    with refusing(f"cannot set the mode of the socket {path}"):
        path.chmod(0o660)
