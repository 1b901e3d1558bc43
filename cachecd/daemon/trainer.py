"""Runs the trainer of `cachecd run ... -- TRAINER`, stops it, and returns its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Any

import structlog

GRACE = 10.0  # seconds after Ctrl-C in which a trainer may save its state and end
_MOMENT = 0.5  # seconds until the log says that the daemon waits for the trainer
_KILLED_AFTER = 3.0  # seconds from SIGTERM to SIGKILL, after a second signal

_log = structlog.get_logger("cachecd.daemon")


class Stop:
    """The request to end the daemon. `repeated`: it was sent twice. `interrupted`: it came from
    Ctrl-C."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.repeated = asyncio.Event()
        self.interrupted = False

    def request(self) -> None:
        """Requests the end: after SIGTERM, or for a reason of the daemon."""
        (self.repeated if self.requested.is_set() else self.requested).set()

    def interrupt(self) -> None:
        """Requests the end after Ctrl-C. The terminal has sent SIGINT to the trainer as well."""
        self.interrupted = self.interrupted or not self.requested.is_set()
        self.request()


async def run_trainer(
    command: Sequence[str], endpoint: str, stop: Stop, umask: int, grace: float = GRACE
) -> int:
    """Runs the trainer with $CACHECD_ENDPOINT set. Returns its exit code, or 128 plus the number of the
    signal that ended it.

    After a request to stop, the trainer gets SIGTERM: at once, or `grace` seconds after Ctrl-C. After a
    second request, it gets SIGTERM at once, unless it has got it already, and SIGKILL 3 seconds later.
    """
    if stop.requested.is_set():  # before the trainer was started
        return 128 + (signal.SIGINT if stop.interrupted else signal.SIGTERM)
    environ = {**os.environ, "CACHECD_ENDPOINT": endpoint}
    try:
        trainer = await asyncio.create_subprocess_exec(*command, env=environ, umask=umask)
    except OSError as error:
        _log.error("cannot start the trainer", command=command[0], why=error.strerror)
        return 127 if isinstance(error, FileNotFoundError) else 126
    ended = asyncio.ensure_future(trainer.wait())
    await _until(ended, stop.requested)
    if stop.interrupted:
        await _until(ended, stop.repeated, min(grace, _MOMENT))
    if not ended.done() and stop.interrupted:
        _log.info(
            "waiting for the trainer to end; press Ctrl-C again to end it now", within_s=grace
        )
        await _until(ended, stop.repeated, grace)
    if not ended.done():
        with contextlib.suppress(ProcessLookupError):
            trainer.terminate()
        await _until(ended, stop.repeated)
        await asyncio.wait({ended}, timeout=_KILLED_AFTER)
    if not ended.done():
        with contextlib.suppress(ProcessLookupError):
            trainer.kill()
    code = await ended
    return 128 - code if code < 0 else code  # a shell reports a signal in this way


async def _until(
    ended: asyncio.Future[Any], event: asyncio.Event, timeout: float | None = None
) -> None:
    waiting: asyncio.Future[Any] = asyncio.ensure_future(event.wait())
    await asyncio.wait({ended, waiting}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
