"""The epochs of a run, one after another: each acquired before the epoch before it is released."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from cachecd_client.errors import DaemonUnreachableError, ProtocolVersionError
from cachecd_client.lease.leased_set import LeasedSet
from cachecd_client.runs.epoch import Epoch
from cachecd_client.runs.mixture import Mixture, Weights
from cachecd_client.runs.run import Run, RunState
from cachecd_client.session.acquire import EpochRequest, SessionLeases

log = logging.getLogger("cachecd")

_RESTART = 2.0  # seconds for a daemon that has ended to be started again, at an epoch's boundary


class Epochs:
    """Takes the epochs of a session's runs. Without a daemon at a boundary it repeats the set it has."""

    def __init__(self, leases: SessionLeases) -> None:
        self._leases = leases
        self._is_alone = False  # no daemon answered at the last boundary

    def take(
        self, dataset: str, epoch: int, job: str | None, timeout: float | None,
        before: Epoch | None = None,
    ) -> Epoch:  # fmt: skip
        """One epoch, as `Cache.acquire`; reports what was delivered of the epoch before."""
        wanted = self._leases.epoch_request(epoch, job, timeout, before)
        return self._leases.watch(Epoch(self._leases.acquire(wanted, dataset)))

    def following(
        self, current: Epoch | None, number: int, acquire: Callable[[], Epoch],
        weights: Mapping[str, float] = MappingProxyType({}),
    ) -> Epoch:  # fmt: skip
        """Epoch `number`: what `acquire` returns, or without a daemon `current`'s set again, reshuffled. A
        daemon that has ended has a moment to be started again, at the first boundary that lacks it."""
        if current is None or current.released:
            return acquire()  # there is nothing to repeat
        current.count_delivered()
        try:
            patience = 0.0 if self._is_alone else min(_RESTART, self._leases.timeout)
            self._leases.transport.await_owner(patience)
            epoch = acquire()
        except (DaemonUnreachableError, ProtocolVersionError) as error:
            self._is_alone = True
            log.warning(
                "%s: epoch %d repeats the %d files of the epoch before: %s",
                current.dataset, number, len(current.files), error,
            )  # fmt: skip
            return self._leases.watch(current.repeated(number, weights))
        self._is_alone = False
        return epoch

    def of_run(
        self, sets: str | Weights, run: Run, job: str | None, timeout: float | None, state: RunState | None
    ) -> Generator[Epoch, None, None]:  # fmt: skip
        """The epochs of `run`, each on lease until the next is taken. `state`: of a run that resumes."""
        current: Epoch | None = None
        following: Epoch | None = None
        try:
            while not run.over:
                number = run.number
                wanted = self._leases.epoch_request(number, job, timeout, current)
                weights: Mapping[str, float] = {}
                if state is not None and not state.over:
                    weights = state.weights  # of an epoch, whatever its caller wants by now
                elif isinstance(sets, Weights):
                    weights = sets.at(run.progress(number, 0.0, run.read))
                datasets = sets if isinstance(sets, str) else weights
                acquire = partial(self._acquire, wanted, datasets, run, state)
                following = self.following(current, number, acquire, weights)
                state = None
                if current is not None:
                    current.release()
                current = following
                yield current
                current.end()
        finally:
            # Both, because an interrupt may come between the two, or while one is released.
            with ExitStack() as releasing:
                for epoch in (current, following):
                    if epoch is not None:
                        releasing.callback(epoch.release)

    def _acquire(
        self, wanted: EpochRequest, sets: str | Mapping[str, float], run: Run, state: RunState | None
    ) -> Epoch:  # fmt: skip
        """The run's next epoch, of one dataset or of several by weights. All sets are on lease when this
        returns; an error ends those that were taken."""
        # In one order on all ranks, so that they wait for the same set and meet the same error.
        if state is not None and not state.over:
            names = sorted(state.sets)  # with those too that had no weight any more
        elif isinstance(sets, str):
            names = [sets]
        else:
            names = sorted(name for name, share in sets.items() if share)
        known = {} if state is None else state.sets
        saved = {name: known[name] for name in names if name in known}
        if state is not None and state.over:
            saved = {name: replace(one, fingerprint="") for name, one in saved.items()}
        if len(saved) > 1:
            # Before any is waited for: a dataset begins where the run was only until it has sealed a shard.
            for name, one in saved.items():
                self._leases.request(wanted, name, one)
        leased: list[LeasedSet] = []
        with ExitStack() as releasing:
            for name in names:
                leased.append(taken := self._leases.acquire(wanted, name, saved.get(name)))
                releasing.callback(taken.release)
            now = {one.dataset: one.manifest for one in leased}
            same = {name for name, one in saved.items() if one.is_set_of(now[name])}
            for name, one in saved.items():
                if one.fingerprint and name not in same:
                    log.warning(
                        "%s: epoch %d begins anew with the set that is cached now: the set of the state is "
                        "no longer cached",
                        name, wanted.epoch,
                    )  # fmt: skip
            resumed = state if len(same) == len(names) else None
            if state is not None:
                elsewhere = state.is_ahead_of(list(now.values()))
                run.resumed(state, resumed is not None, elsewhere)
            if isinstance(sets, str):
                epoch = Epoch(leased[0], run, resumed)
            else:
                epoch = Mixture(leased, sets, run, resumed)
            releasing.pop_all()
        return self._leases.watch(epoch)
