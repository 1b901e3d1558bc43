"""What of a file the page cache holds."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path


def resident(path: Path) -> list[bool]:
    """Which blocks of a file are in the page cache."""
    size = path.stat().st_size
    told = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as at:
        start = (ctypes.c_char * size).from_buffer(at)
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(start)), size, told) == 0
        del start
    return [bool(page & 1) for page in told]


def dropped(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
