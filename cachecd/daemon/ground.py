"""Whether what lies under cache.dir is still what this daemon began with, and was not moved or replaced.

A file system may be unmounted, and a directory moved away. What is missing then is not gone for good, and
what lies there instead is not ours to write to or to delete.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from cachecd.disk.filesystem import refusing
from cachecd.errors import DiskError


class Ground:
    """The directories of a running daemon, by their inodes."""

    def __init__(self, directories: Iterable[Path]) -> None:
        """DiskError if one cannot be looked at."""
        self._known = {path: _identity(path) for path in directories}

    def check(self) -> None:
        """DiskError, with the remedy, if a directory is gone, is another, or cannot be seen."""
        for path, known in self._known.items():
            if (found := _identity(path)) != known:
                state = "is gone" if found is None else "was replaced"
                raise DiskError(
                    f"{path} {state} while the daemon was running; put back what was there, or "
                    "restart the daemon to go on with what there is now"
                )


def _identity(path: Path) -> tuple[int, int] | None:
    with refusing(f"cannot look at {path}"):
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
    return found.st_dev, found.st_ino
