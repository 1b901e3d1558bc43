"""Checks that nobody moved or replaced cache.dir while the daemon runs.

A person may unmount a file system or move a directory. Then the files still exist elsewhere, and the
daemon must not write or delete in another directory at the same path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from cachecd.disk.filesystem import refusing
from cachecd.errors import DiskError


class DirectoryCheck:
    """Remembers the inodes of directories."""

    def __init__(self, directories: Iterable[Path]) -> None:
        """DiskError if a directory cannot be read."""
        self._identities = {path: _identity(path) for path in directories}

    def check(self) -> None:
        """DiskError, with the remedy, if a directory is missing, was replaced, or cannot be read."""
        for path, known in self._identities.items():
            if (identity := _identity(path)) != known:
                state = "was removed" if identity is None else "was replaced"
                raise DiskError(
                    f"{path} {state} while the daemon was running: put the old directory back, or "
                    "restart the daemon to use the new state"
                )


def _identity(path: Path) -> tuple[int, int] | None:
    with refusing(f"cannot look at {path}"):
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
    return status.st_dev, status.st_ino
