"""Reports the daemon's state to the service manager (sd_notify), if there is one."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping

_STARTS_WITHIN = 120_000_000  # microseconds


class ServiceManager:
    """The service manager of $NOTIFY_SOCKET and $WATCHDOG_USEC. No call ever blocks or raises, because a
    manager that does not read must not stop the daemon."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        # "@" means the NUL byte of an abstract address. Other forms (vsock) are not Unix sockets.
        self._address = (
            "\0" + address[1:] if address[:1] == "@" else address if address[:1] == "/" else ""
        )
        microseconds = environ.get("WATCHDOG_USEC", "")
        is_own = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watched = (
            bool(self._address) and is_own and microseconds.isascii() and microseconds.isdigit()
        )
        #: Seconds between two calls of `watchdog`, half of the limit; None if the manager has no limit.
        self.watchdog_interval = int(microseconds) / 2e6 if watched and int(microseconds) else None

    def ready(self) -> None:
        """Reports that the daemon serves, or that a reload has ended."""
        self._send("READY=1")

    def starting(self, text: str) -> None:
        """Reports that the daemon is still starting. The manager then waits for two more minutes."""
        self._send(f"EXTEND_TIMEOUT_USEC={_STARTS_WITHIN}\nSTATUS={' '.join(text.splitlines())}")

    def reloading(self) -> None:
        """Reports that the daemon reads its configuration again. `ready` reports the end."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Reports that the daemon is stopping."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """Reports that the daemon is alive. The daemon must call this every `watchdog_interval` seconds."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as to_manager:
            to_manager.sendto(message.encode("utf-8", "replace"), self._address)
