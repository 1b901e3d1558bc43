"""The interface of executors, which run streams in worker processes. Only `LocalExecutor` implements it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cachecd.sampler.messages import FromStream, OfStreams, Setup


@dataclass(frozen=True, slots=True)
class ExecutorStatus:
    """`workers`: the configured number of processes. `alive`: the number of processes that are alive.
    `restarts`: how often a dead process was replaced. `last_end`: the reason of the last death, or ""."""

    workers: int
    alive: int
    restarts: int
    last_end: str


class Executor(Protocol):
    """Runs streams in worker processes. Belongs to one event loop."""

    async def start(self, report: Callable[[FromStream], None]) -> None:
        """Connects the processes. From now on the event loop calls `report` with each report of a stream.
        ConfigError if no process can be started."""

    def send(self, message: OfStreams) -> None:
        """Sends a message to the process that runs the stream. Messages keep their order. If no process
        runs the stream, the message is dropped, unless it is Open. Open for an open stream closes the
        stream first. The executor adds the path of the file to each Grant.

        Reports of a stream are delivered in order. The last report of an open stream is Failed or Closed.
        Each Close gets a Closed, even if no process runs the stream. After Closed, only sealed files of the
        stream exist, and no report follows until the stream is opened again.

        If a process dies, its streams fail. If a stream had a unit in work, its Failed names the unit; the
        other failures are `passing`.
        """

    def reload(self, setup: Setup, workers: int) -> None:
        """Changes the setup and the number of processes. Each process ends, and is replaced unless there
        are too many. Its streams fail, and no failure names a unit."""

    def status(self) -> ExecutorStatus:
        """Returns the state of the processes."""

    async def close(self, grace: float) -> None:
        """Ends all processes within `grace` + 3 seconds. Kills each process that is alive after `grace`
        seconds. Afterwards no process and no temporary file exists, and no report is delivered. Exception:
        the kernel cannot kill a process that waits for a dead disk or file server."""
