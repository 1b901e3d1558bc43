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
    """Returns the manifest's path in this process, because a container may mount the cache elsewhere."""
    return Path(environ.get("CACHECD_DIR") or granted.cache_dir) / granted.manifest


class HeldLease:
    """This process's read lock on a lease's manifest.

    While the lock is held, every file that the manifest names stays present and byte-identical. The lock
    is an open-file-description lock: it ends when this process closes it or dies, and no fork prolongs
    it. A forked child, or a process that unpickles the lease, has no lock until it calls `ensure`, which
    takes a lock for that process.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Takes the lock. LeaseLostError if the manifest was deleted or replaced, or is being deleted.
        CallerError if this process cannot see or read the cache; CorruptError or ProtocolVersionError if
        this client cannot read the manifest."""
        self.path = Path(path)
        self.released = False
        #: The delivered fraction of this rank's part, and the fraction that was reported.
        self.delivered = self.reported = 0.0
        self._descriptor, self.manifest = _lock(self.path)

    def ensure(self) -> None:
        """Takes the lock if this process does not hold it; LeaseLostError if the lease has ended. Must not
        be called after `close`."""
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
        """Closes this process's lock permanently. Idempotent."""
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
                f"there is no {path.parent}: mount the daemon's cache in this container, and set "
                "$CACHECD_DIR to its path"
            ) from None
        raise LeaseLostError(f"{path}: the lease's manifest no longer exists") from None
    except PermissionError as error:
        raise CallerError(
            f"{path}: {error.strerror}; a trainer needs read permission on the cache: "
            "join the group that owns its directory"
        ) from error
    try:
        if not try_lock(descriptor, fcntl.F_RDLCK):
            raise LeaseLostError(f"{path}: the daemon is deleting this lease")
        locked = os.fstat(descriptor.fileno())
        # A lock on a deleted or replaced file does not protect the files of the lease.
        try:
            is_current = os.path.samestat(path.stat(), locked)
        except FileNotFoundError:
            is_current = False
        if not is_current:
            raise LeaseLostError(
                f"{path}: the manifest was deleted or replaced before it was locked"
            )
        return descriptor, decode_manifest(os.pread(descriptor.fileno(), locked.st_size, 0))
    except ValueError as error:
        descriptor.close()
        raise CorruptError(f"{path}: {error}") from error
    except BaseException:
        descriptor.close()
        raise
