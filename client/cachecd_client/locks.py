"""Open-file-description locks: the operating system reports which holders are alive.

The locks belong to the open file, and end with its last descriptor. (A process would lose a POSIX lock
when it closes any descriptor of the file.)
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from cachecd_client.descriptor import Descriptor

# struct flock: l_type, l_whence, l_start, l_len, l_pid; 0, 0 is the whole file. l_pid must be 0.
_FLOCK = struct.Struct("@hhqqi4x")


def try_lock(file: int | Descriptor, kind: int) -> bool:
    """Takes a lock, fcntl.F_RDLCK or F_WRLCK, on the whole file without waiting. Returns False if the lock
    of another open file conflicts. A write lock needs a file that is open for writing. OSError."""
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _whole_file(kind))
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def is_locked(file: int | Descriptor) -> bool:
    """Whether another open file has a read or write lock. Takes no lock. OSError."""
    kind, *_ = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK)))
    return bool(kind != fcntl.F_UNLCK)


def _whole_file(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)
