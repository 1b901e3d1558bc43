"""Private temporary directories that go with whoever made them, by whatever death."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import socket
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

_PREFIX = "cachecd-inflated-"


class Scratch:
    """A directory in `tempfile.gettempdir()` ($TMPDIR, else /tmp) that only this user can enter.

    It is removed with all in it when the last reference goes, at the latest when the interpreter
    ends. If the process is killed, the next Scratch of this user on this machine removes it: a lock
    on a directory (flock, which systemd-tmpfiles respects too) says that its maker is alive.

    A forked child reads what is in it and never removes it; pickled, it becomes None.
    """

    def __init__(self) -> None:
        folder = tempfile.gettempdir()
        _sweep(folder)
        self.path, descriptor = _make(folder)
        self._finalizer = weakref.finalize(self, _remove, self.path, descriptor, os.getpid())

    def remove(self) -> None:
        """Removes it now. Idempotent."""
        self._finalizer()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return type(None), ()


def _make(folder: str) -> tuple[str, int]:
    while True:
        path = tempfile.mkdtemp(prefix=f"{_PREFIX}{'-'.join(_machine())}-", dir=folder)
        # Until it is locked, somebody may sweep it: then there is another try.
        try:
            # Not closed in forked children: one that outlives its parent may still read.
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        # A file system without locks: nobody else can take one either, and so nobody sweeps.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.path.exists(path):
            return path, descriptor
        os.close(descriptor)


def _remove(path: str, descriptor: int, maker: int) -> None:
    os.close(descriptor)
    if os.getpid() == maker:
        shutil.rmtree(path, ignore_errors=True)


def _machine() -> tuple[str, str]:
    """The machine's name, which outlives a boot, and the boot, which containers share; hashed."""
    name = socket.gethostname()
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read()
    except OSError:
        boot = name
    return _short(name), _short(boot)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _sweep(folder: str) -> None:
    """Removes the directories of processes of this machine that were killed.

    Not of others: a folder on a network may not carry their locks here.
    """
    name, boot = _machine()
    ours = re.compile(rf"{_PREFIX}(?:{name}-\w+|\w+-{boot})-\w+")
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if ours.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_left(entry.path)


def _remove_if_left(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)
