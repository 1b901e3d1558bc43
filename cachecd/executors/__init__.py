"""Where assignments and streams are carried out: local processes; others may follow behind the same
contract."""

from __future__ import annotations

from typing import Protocol

from cachecd.sampler.messages import Make, OfStreams


class Executor(Protocol):
    """Carries out assignments by sampler processes.

    What they say is delivered on the event loop, in order for each assignment, and every assignment
    submitted is answered by exactly one Made or Failed, however its process ends, unless the executor
    is closed first. Of one that is not Made, no file is left.
    """

    async def start(self) -> None:
        """Starts the processes. ConfigError if that is impossible."""

    def submit(self, make: Make) -> None:
        """Has the assignment carried out, as soon as a process is free."""

    def send(self, message: OfStreams) -> None:
        """Has a message reach the process of its stream, in order. A message other than Open for a stream
        that nobody carries is dropped.

        What is said of a stream is reported on the event loop, in order. A stream that was opened ends with
        StreamFailed, or with the Closed that answers each Close, also one for a stream that nobody carries;
        nothing of its grants is left then but sealed shards, and nothing more is said of it until it is
        opened again. The streams of a process that dies fail: with the unit that it had in hand the one
        that was worked on, the others with `passing`.
        """

    async def close(self, grace: float) -> None:
        """Ends all processes, those that have not ended by themselves after `grace` seconds by force.

        Afterwards none is left, nor are their temporary files, and nothing more is delivered.
        """
