"""Unix sockets: the default path, the limit of a path, and the process at the other end."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping

MAX_PATH = 107  # bytes; sockaddr_un.sun_path is 108 bytes, the last of them NUL


def path_length(path: str | os.PathLike[str]) -> int:
    """Returns the bytes of a socket's path, to compare with MAX_PATH."""
    return len(os.fsencode(path))


def peer_pid(connected: socket.socket) -> int:
    """Returns the process that bound the socket; 0 if it is in another container."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


def default_endpoint(environ: Mapping[str, str]) -> str:
    """Returns the default socket of a daemon: the user's own, or the service's."""
    return f"ipc://{environ.get('XDG_RUNTIME_DIR') or '/run'}/cachecd/cachecd.sock"


def reports_of(endpoint: str) -> str:
    """Returns the path of the datagram socket beside the daemon's socket, for the reports of trainers. It
    may be longer than MAX_PATH; then there are no reports."""
    return endpoint.removeprefix("ipc://") + ".reports"
