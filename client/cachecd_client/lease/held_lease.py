"""The trainer's side of a lease: a read lock on its manifest, held while the files are read."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cachecd_client.descriptor import Descriptor
from cachecd_client.errors import CallerError, CorruptError, LeaseLostError
from cachecd_client.locks import try_lock
from cachecd_client.protocol import Granted, Manifest, decode_manifest


def manifest_path(granted: Granted, environ: Mapping[str, str]) -> Path:
    """The manifest's path in this process; a container may mount the cache elsewhere."""
    return Path(environ.get("CACHECD_DIR") or granted.cache_dir) / granted.manifest


class HeldLease:
    """This process's read lock on a lease's manifest.

    While it is held, every file that the manifest names stays present and byte-identical. It is an
    open-file-description lock: it ends when this process closes it or dies in any way, and no fork
    prolongs it. A forked child, or a process that unpickles the lease, holds nothing until it calls
    `ensure`, which takes its own lock.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Takes the lock. LeaseLostError if the manifest is gone, being deleted, or replaced. CallerError
        if the cache cannot be seen or read from here; CorruptError or ProtocolVersionError if the manifest
        is not one this client can read."""
        self.path = Path(path)
        self.released = False
        #: The fraction of this rank's part that was delivered, and the fraction that was reported.
        self.delivered = self.reported = 0.0
        self._descriptor, self.manifest = _lock(self.path)

    def ensure(self) -> None:
        """Takes the lock if this process does not hold it; LeaseLostError if the lease has ended. Not
        allowed after `close`."""
        assert not self.released
        if not self.is_held:
            self._descriptor, self.manifest = _lock(self.path)

    @property
    def unreported(self) -> float:
        return self.delivered - self.reported

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None and not self._descriptor.closed

    def close(self) -> None:
        """Ends this process's share in the lease, for good. Idempotent."""
        self.released = True
        if self._descriptor is not None:
            self._descriptor.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_descriptor": None}


def _lock(path: Path) -> tuple[Descriptor, Manifest]:
    try:
        descriptor = Descriptor.of_file(path)
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise CallerError(
                f"there is no {path.parent}: the daemon's cache is not visible here; "
                "mount it in this container and set $CACHECD_DIR to the place"
            ) from None
        raise LeaseLostError(f"{path}: the lease's manifest is gone") from None
    except PermissionError as error:
        raise CallerError(
            f"{path}: {error.strerror}; a trainer needs read permission on the cache: "
            "join the group that owns its directory"
        ) from error
    try:
        if not try_lock(descriptor, fcntl.F_RDLCK):
            raise LeaseLostError(f"{path}: the daemon is deleting this lease")
        # A lock on a file that is no longer the one at `path` protects nothing.
        _compare(path, os.fstat(descriptor.fileno()))
        return descriptor, _manifest(path, descriptor.fileno())
    except BaseException:
        descriptor.close()
        raise


def _compare(path: Path, held: os.stat_result) -> None:
    try:
        current = path.stat()
    except FileNotFoundError:
        raise LeaseLostError(f"{path}: the manifest was deleted before it was locked") from None
    if (current.st_dev, current.st_ino) != (held.st_dev, held.st_ino):
        raise LeaseLostError(f"{path}: the manifest was replaced before it was locked")


def _manifest(path: Path, descriptor: int) -> Manifest:
    text = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    try:
        return decode_manifest(text)
    except ValueError as error:
        raise CorruptError(f"{path}: {error}") from error
