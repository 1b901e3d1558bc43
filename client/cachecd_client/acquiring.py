"""The daemon's answer to one acquire, waited for as long as it takes."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import NamedTuple

from cachecd_client.errors import DaemonUnreachableError
from cachecd_client.protocol import Acquire, Granted, Held, Missing, Reply, Request, Waiting
from cachecd_client.regaining import Regaining
from cachecd_client.waiting import Wait

log = logging.getLogger("cachecd")


class Asker(NamedTuple):
    """Which rank asks for which epoch of which job, and the seconds that it waits at most."""

    job: str
    epoch: int
    rank: int
    world: int
    timeout: float | None


class Acquiring:
    """One acquire of a dataset's set; `regaining`: as a run that resumes wants it."""

    def __init__(
        self,
        ask: Callable[[Request], Reply],
        dataset: str,
        asker: Asker,
        regaining: Regaining | None,
    ) -> None:
        self._ask = ask
        self._dataset = dataset
        self._asker = asker
        self._regaining = regaining
        self._wait = Wait(dataset, asker.timeout)

    def begin(self) -> None:
        """Has the daemon begin with what is wanted, and does not wait for it."""
        reply = self._asked()
        # Without shards, something else has to end first.
        if isinstance(reply, Missing) and reply.shards and self._regaining:
            self._regaining.missing(reply, self._ask, self._wait)
            self._asked()

    def granted(self) -> Granted:
        """The grant. AcquireTimeoutError; SetGoneError, if only a set will do that cannot be."""
        while True:
            match self._asked():
                case Granted() as granted:
                    return granted
                case Waiting() as waiting:
                    self._wait.pause(waiting)
                case Missing() as missing if self._regaining:
                    self._regaining.missing(missing, self._ask, self._wait)
                case other:
                    raise AssertionError(f"{other} is no answer to Acquire")

    def say_held(self, lease: str) -> None:
        """Says that the lease is locked, if anybody is there to hear it."""
        try:
            self._ask(Held(uuid.uuid4().hex, lease, self._asker.rank))
        except DaemonUnreachableError as error:
            # The lock is what counts, and it is there: a daemon that starts again will find it.
            log.warning("%s: leased, but %s", self._dataset, error)

    def _asked(self) -> Reply:
        # A new question each time: a repeated id would get the old answer.
        job, epoch, rank, world, _ = self._asker
        wanted = self._regaining.fields() if self._regaining else {}
        return self._ask(
            Acquire(uuid.uuid4().hex, self._dataset, job, epoch, rank, world, **wanted)
        )
