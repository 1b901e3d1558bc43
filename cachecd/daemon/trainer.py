"""The trainer that `cachecd run` starts beside the daemon: how it is stopped, and its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Any

import structlog

GRACE = 10.0  # seconds after Ctrl-C for a trainer to save what it has and end
_MOMENT = 0.5  # seconds after Ctrl-C in which most trainers end: the log does not say that it waits
_KILLED_AFTER = 3.0  # seconds after SIGTERM, once a second signal has come

_log = structlog.get_logger("cachecd.daemon")


class Stop:
    """Whether the daemon must end, whether Ctrl-C was the reason, and whether the request was repeated."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.repeated = asyncio.Event()
        self.interrupted = False

    def request(self) -> None:
        """The daemon must end, because of SIGTERM or for its own reason."""
        (self.repeated if self.requested.is_set() else self.requested).set()

    def interrupt(self) -> None:
        """Ctrl-C. The terminal has sent it to the trainer too."""
        self.interrupted = self.interrupted or not self.requested.is_set()
        self.request()


async def run_trainer(
    command: Sequence[str], endpoint: str, stop: Stop, umask: int, grace: float = GRACE
) -> int:
    """Runs the trainer with $CACHECD_ENDPOINT set. Returns its exit code, or 128 plus the number of the
    signal that ended it.

    A stop is passed on as SIGTERM: at once, or `grace` seconds after Ctrl-C. A repeated request ends the
    trainer: SIGTERM, and soon after SIGKILL.
    """
    if stop.requested.is_set():  # before it was begun
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
    return 128 - code if code < 0 else code  # as a shell says "killed by signal"


async def _until(
    ended: asyncio.Future[Any], event: asyncio.Event, timeout: float | None = None
) -> None:
    waiting: asyncio.Future[Any] = asyncio.ensure_future(event.wait())
    await asyncio.wait({ended, waiting}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
