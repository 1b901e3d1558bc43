"""Measures the disk usage of the cache as `du` does, without asking the daemon."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

_EVERY = 0.05  # seconds


class DiskWatch:
    """Measures a directory repeatedly while the context lasts. `most` is the largest result."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk-watch", daemon=True)
        self.most = 0
        self.measurements = 0

    def now(self) -> int:
        """Returns the bytes of allocated blocks under the directory, including folders. Each file counts
        once."""
        blocks: dict[int, int] = {}
        for folder, _, files in os.walk(self._directory):
            for name in (".", *files):
                with suppress(FileNotFoundError):  # the daemon may delete files meanwhile
                    status = os.lstat(os.path.join(folder, name))
                    blocks[status.st_ino] = status.st_blocks
        return 512 * sum(blocks.values())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY):
            self.most = max(self.most, self.now())
            self.measurements += 1
