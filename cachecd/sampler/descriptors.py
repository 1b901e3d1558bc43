"""Keeps files that the daemon shares with its process out of reach of user code, which may close
descriptors or write to them by their numbers, on purpose or not."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import resource

_MOST = 1 << 16  # the kernel's table of descriptors grows with the highest number: to half a MiB
_SPARE = 64

_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)


def out_of_reach(descriptor: int) -> int:
    """Moves a descriptor to a number that no loop over all numbers up to the limit reaches. Returns the new
    number. If the limit cannot be raised, the number is one of the last below the limit. Started programs
    do not inherit the descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    top = max(top, soft) if soft != resource.RLIM_INFINITY else top
    resource.setrlimit(resource.RLIMIT_NOFILE, (top, hard))
    try:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(top - _SPARE, 3))
    finally:
        # What is open above the limit stays open.
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    os.close(descriptor)
    return moved


def mapped(descriptor: int, length: int) -> memoryview:
    """Maps the file's first bytes, shared with all processes that map them, until this process ends. Unlike
    the mmap module it keeps no descriptor through which a stray write could change the bytes."""
    protection, shared = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED
    address = _mmap(None, length, protection, shared, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return memoryview((ctypes.c_ubyte * length).from_address(address)).cast("B")
