"""Protects files that the daemon shares with a process from user code in this process. User code may close
descriptors by number, or write to them, on purpose or not."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import resource

# The kernel's table of descriptors grows with the highest number: here to half a MiB.
_HIGHEST = 1 << 16
_SPARE = 64  # numbers below the limit that such descriptors may use

_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)


def out_of_reach(descriptor: int) -> int:
    """Moves a descriptor to a number above the limit, so that no loop over all numbers up to the limit
    reaches it. Returns the new number. If the limit cannot be raised, the number is one of the last below
    the limit. Programs that this process starts do not inherit the descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = _HIGHEST if hard == resource.RLIM_INFINITY else min(hard, _HIGHEST)
    top = max(top, soft) if soft != resource.RLIM_INFINITY else top
    resource.setrlimit(resource.RLIMIT_NOFILE, (top, hard))
    try:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(top - _SPARE, 3))
    finally:
        # Descriptors above the limit stay open.
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    os.close(descriptor)
    return moved


def mapped(descriptor: int, length: int) -> memoryview:
    """Maps the first bytes of the file until this process ends. All processes that map the file share the
    bytes. Unlike the mmap module, this function keeps no descriptor that a stray write could reach."""
    protection, shared = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED
    address = _mmap(None, length, protection, shared, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return memoryview((ctypes.c_ubyte * length).from_address(address)).cast("B")
