"""Where assignments are carried out: local processes; others may follow behind the same contract."""

from __future__ import annotations

from typing import Protocol

from cachecd.sampler.messages import Make


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

    async def close(self, grace: float) -> None:
        """Ends all processes, those that have not ended by themselves after `grace` seconds by force.

        Afterwards none is left, nor are their temporary files, and nothing more is delivered.
        """
