"""The sets of an epoch: asked for, and waited for as long as it takes."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from cachecd_client.protocol import Acquire, Granted, Reply, Request, Waiting
from cachecd_client.standing import LeftSet, Standing
from cachecd_client.waiting import Wait

if TYPE_CHECKING:
    from cachecd_client.lease import HeldLease
    from cachecd_client.leased import LeasedSet

log = logging.getLogger("cachecd")


@contextmanager
def on_lease(
    datasets: Sequence[str],
    lease: Callable[[str, LeftSet | None], LeasedSet],
    begin: Callable[[str, LeftSet], object],
    standing: Standing | None,
) -> Iterator[tuple[list[LeasedSet], bool]]:
    """A set of each dataset, in this order, and whether all are the very sets of `standing`.

    `lease` takes a set, `begin` asks for it without waiting. All of them on lease, or none: an error within
    ends the leases, else they are the caller's.
    """
    left: dict[str, LeftSet] = {}
    if standing is not None:
        left = {name: standing.sets[name] for name in datasets if name in standing.sets}
        if standing.over:
            left = {name: replace(one, fingerprint="") for name, one in left.items()}
    if len(left) > 1:
        # Before any is waited for: a dataset begins where the run was only until it has sealed a shard.
        for name, one in left.items():
            begin(name, one)
    sets: list[LeasedSet] = []
    with ExitStack() as releasing:
        for name in datasets:
            sets.append(leased := lease(name, left.get(name)))
            releasing.callback(leased.release)
        same = [
            name in left and left[name].is_set_of(one.manifest)
            for name, one in zip(datasets, sets, strict=True)
        ]
        for name, is_same in zip(datasets, same, strict=True):
            if name in left and left[name].fingerprint and not is_same:
                log.warning(
                    "%s: epoch %d begins anew with the set that is cached now: that of the state is gone",
                    name, sets[0].number,
                )  # fmt: skip
        yield sets, all(same)
        releasing.pop_all()


class Asker(NamedTuple):
    """Which rank asks for which epoch of which job, and the seconds that it waits at most; `before`: the
    leases of the epoch before, by dataset."""

    job: str
    epoch: int
    rank: int
    world: int
    timeout: float | None
    before: Mapping[str, HeldLease] = MappingProxyType({})


class Acquiring:
    """One acquire of a dataset's set; `left`: what a run that resumes had."""

    def __init__(
        self, ask: Callable[[Request], Reply], dataset: str, asker: Asker, left: LeftSet | None
    ) -> None:
        self._ask = ask
        self._dataset = dataset
        self._asker = asker
        self._left = {} if left is None else left.for_acquire()
        self._wait = Wait(dataset, asker.timeout)

    def begin(self) -> Reply:
        """Asks once, and reports what was delivered of the epoch before."""
        job, epoch, rank, world, _, before = self._asker
        fields: dict[str, Any] = {
            "dataset": self._dataset,
            "job": job,
            "epoch": epoch,
            "local_rank": rank,
            "local_world_size": world,
            **self._left,
        }
        held = before.get(self._dataset)
        since = 0.0 if held is None else held.unreported
        if held is not None and since:
            fields |= {"lease": held.manifest.lease, "delivered": since}
        # A new id each time: a repeated id would get the old reply.
        reply = self._ask(Acquire(uuid.uuid4().hex, **fields))
        if held is not None:
            held.reported += since
        return reply

    def granted(self) -> Granted:
        """The grant. AcquireTimeoutError."""
        while True:
            match self.begin():
                case Granted() as granted:
                    return granted
                case Waiting() as waiting:
                    self._wait.pause(waiting)
                case other:
                    raise AssertionError(f"{other} is no answer to Acquire")
