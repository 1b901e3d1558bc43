"""The end of leases, and of a session: at its close, or at the interpreter's exit."""

from __future__ import annotations

import contextlib
import logging
import uuid
import weakref
from collections.abc import Collection
from typing import TYPE_CHECKING

from cachecd_client.errors import CachecdError
from cachecd_client.lease import HeldLease
from cachecd_client.private_daemon import PrivateDaemon
from cachecd_client.protocol import Released
from cachecd_client.transport import Transport

if TYPE_CHECKING:
    from cachecd_client.epoch import Epoch

log = logging.getLogger("cachecd")

_RELEASE_TIMEOUT = 0.5  # for a hint: the daemon learns of a release from the lock anyway


def release(held: HeldLease, transport: Transport, rank: int) -> None:
    """Reports what was delivered, if the daemon is there, then ends this process's share in the lease."""
    lease = held.manifest.lease
    try:
        if held.is_held:  # else a forked child's copy; the lease is its parent's
            released = Released(uuid.uuid4().hex, lease, rank, held.unreported)
            transport.ask(released, _RELEASE_TIMEOUT)
    except CachecdError as error:
        log.debug("release of %s not reported: %s", lease, error)
    finally:
        held.close()


def end_session(
    held: set[HeldLease],
    epochs: Collection[weakref.ref[Epoch]],
    transport: Transport,
    rank: int,
    daemon: PrivateDaemon | None,
) -> None:
    """Releases all leases, also of epochs that still run, and ends the daemon if it is the session's."""
    for known in list(epochs):
        if (epoch := known()) is not None:
            with contextlib.suppress(Exception):  # whatever an interpreter that ends lacks by now
                epoch.count_delivered()
    with contextlib.suppress(KeyError):
        while True:
            release(held.pop(), transport, rank)
    if daemon is not None:
        daemon.close()
