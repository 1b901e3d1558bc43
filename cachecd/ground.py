"""Is what lies under `cache.dir` still what this daemon began with, and not moved or replaced?

A file system that was unmounted, a directory that somebody removed or moved away: what is missing
then is not gone for good, and what lies there instead is not ours to write into or to delete from.
"""

from __future__ import annotations

import os
from pathlib import Path

from cachecd.disk.filesystem import refusing
from cachecd.errors import DiskError
from cachecd.layout import Layout


class Ground:
    """The directories and the catalog of a running daemon, by their inodes."""

    def __init__(self, layout: Layout, datasets: list[str]) -> None:
        """All of them must be there. DiskError if one cannot be looked at."""
        self._layout = layout
        shards = [layout.shards / name for name in sorted(datasets)]
        self._known = {
            path: _identity(path)
            for path in (
                *(layout.root, layout.shards, *shards),
                *(layout.leases, layout.index, layout.catalog),
            )
        }

    def check(self) -> None:
        """DiskError, naming it and the remedy, if one of them is gone, is another, or cannot be seen.

        The one that holds nothing of lasting value is made anew instead.
        """
        for path, known in self._known.items():
            if (found := _identity(path)) != known:
                state = "is gone" if found is None else "was replaced"
                raise DiskError(
                    f"{path} {state} while the daemon was running; put back what was there, or "
                    "restart the daemon to go on with what there is now"
                )
        with refusing(f"cannot make the directory {self._layout.tmp} anew"):
            if not self._layout.tmp.is_dir():
                self._layout.tmp.mkdir(mode=0o750, exist_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    with refusing(f"cannot look at {path}"):
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
    return found.st_dev, found.st_ino
