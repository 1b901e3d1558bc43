"""Executors run streams in worker processes. Local processes are the only executor; others may follow."""

from __future__ import annotations

from typing import Protocol

from cachecd.sampler.messages import OfStreams


class Executor(Protocol):
    """Runs streams in worker processes."""

    def send(self, message: OfStreams) -> None:
        """Sends a message to the process of its stream; messages keep their order. A message for a stream
        that no process runs is dropped, except Open. Open for an open stream closes the stream first.

        The reports of a stream are delivered on the event loop, in order. A stream that was opened ends
        with Failed, or with Closed. Each Close gets a Closed, even for a stream that no process runs. Then
        only sealed shards of the stream's grants are left, and no report follows until the stream is opened
        again.

        If a process dies, its streams fail. The failure of the stream whose unit was in work names the
        unit; the other failures are `passing`.
        """
