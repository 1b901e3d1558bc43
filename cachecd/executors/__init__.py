"""Where streams are carried: local worker processes; others may follow behind the same contract."""

from __future__ import annotations

from typing import Protocol

from cachecd.sampler.messages import OfStreams


class Executor(Protocol):
    """Carries streams by worker processes."""

    def send(self, message: OfStreams) -> None:
        """Has a message reach the process of its stream, in order. A message other than Open for a stream
        that nobody carries is dropped. A stream that is open is closed before it is opened again.

        What is said of a stream is reported on the event loop, in order. A stream that was opened ends with
        Failed, or with the Closed that answers each Close, also one for a stream that nobody carries;
        nothing of its grants is left then but sealed shards, and nothing more is said of it until it is
        opened again. The streams of a process that dies fail: with the unit that it had in hand the one
        that was worked on, the others with `passing`.
        """
