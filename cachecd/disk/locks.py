"""Open-file-description locks: the operating system reports which holders are alive.

They belong to the open file, not to the process, and end with its last descriptor. (The older POSIX locks
are lost as soon as the process closes any descriptor of the same file.)
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

# struct flock: l_type, l_whence, l_start, l_len, l_pid; 0, 0 is the whole file. l_pid must be 0.
_FLOCK = struct.Struct("@hhqqi4x")
_WRITE = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def try_write_lock(fd: int) -> bool:
    """Takes the write lock on the whole file without waiting; False if another process holds a lock.

    `fd` must be open for writing. Closing its last duplicate releases the lock.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WRITE)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def is_locked(fd: int) -> bool:
    """Whether another process holds a read or write lock on the file. Takes no lock."""
    kind, *_ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _WRITE))
    return bool(kind != fcntl.F_UNLCK)
