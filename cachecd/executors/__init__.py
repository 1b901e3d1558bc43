"""Executors run streams in worker processes. Local processes are the only executor; others may follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cachecd.sampler.messages import FromStream, OfStreams, Setup


@dataclass(frozen=True, slots=True)
class ExecutorStatus:
    """`workers`: how many processes there should be, of which `alive` are alive. `restarts`: how often one
    died and was replaced. `last_end`: the reason of the last death, or ""."""

    workers: int
    alive: int
    restarts: int
    last_end: str


class Executor(Protocol):
    """Runs streams in worker processes. Belongs to one event loop."""

    async def start(self, report: Callable[[FromStream], None]) -> None:
        """Connects the processes. From now on `report` gets the reports of streams, on the event loop.
        ConfigError if no process can be started."""

    def send(self, message: OfStreams) -> None:
        """Sends a message to the process of its stream; messages keep their order. A message for a stream
        that no process runs is dropped, except Open. Open for an open stream closes the stream first. The
        executor gives the shard of each Grant its file.

        The reports of a stream are delivered in order. A stream that was opened ends with Failed, or with
        Closed. Each Close gets a Closed, even for a stream that no process runs. Then only sealed shards of
        the stream's grants are left, and no report follows until the stream is opened again.

        If a process dies, its streams fail. The failure of the stream whose unit was in work names the
        unit; the other failures are `passing`.
        """

    def reload(self, setup: Setup, workers: int) -> None:
        """Changes the setup and the number of processes. Each process is replaced, or ends if there are too
        many; its streams fail without blame."""

    def status(self) -> ExecutorStatus:
        """Returns the state of the processes."""

    async def close(self, grace: float) -> None:
        """Ends all processes, within `grace` and 3 seconds. A process that has not ended after `grace`
        seconds is killed. Afterwards no process and none of their temporary files is left, and no report is
        delivered. Only a process that the kernel cannot kill yet is left, because it waits for a dead disk
        or file server."""
