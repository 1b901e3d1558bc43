"""Acquires the epochs of a run one after another, each before the previous epoch is released."""

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

_RESTART = 2.0  # seconds to wait at an epoch's boundary until an ended daemon is started again


class Epochs:
    """Acquires the epochs of a session's runs. Without a daemon at a boundary, repeats the current set."""

    def __init__(self, leases: SessionLeases) -> None:
        self._leases = leases
        self._is_offline = False  # no daemon answered at the last boundary

    def take(
        self, dataset: str, epoch: int, job: str | None, timeout: float | None,
        before: Epoch | None = None,
    ) -> Epoch:  # fmt: skip
        """Returns one epoch, as `Cache.acquire`. Reports the delivered fraction of the epoch `before`."""
        wanted = self._leases.epoch_request(epoch, job, timeout, before)
        return self._leases.watch(Epoch(self._leases.acquire(wanted, dataset)))

    def following(
        self, current: Epoch | None, number: int, acquire: Callable[[], Epoch],
        weights: Mapping[str, float] = MappingProxyType({}),
    ) -> Epoch:  # fmt: skip
        """Returns epoch `number` from `acquire`; without a daemon, the set of `current` in another order.
        At the first boundary without a daemon, waits a moment until the daemon is started again."""
        if current is None or current.released:
            return acquire()  # no set can be repeated
        current.count_delivered()
        try:
            patience = 0.0 if self._is_offline else min(_RESTART, self._leases.timeout)
            self._leases.transport.await_owner(patience)
            epoch = acquire()
        except (DaemonUnreachableError, ProtocolVersionError) as error:
            self._is_offline = True
            log.warning(
                "%s: epoch %d repeats the %d files of the previous epoch: %s",
                current.dataset, number, len(current.files), error,
            )  # fmt: skip
            return self._leases.watch(current.repeated(number, weights))
        self._is_offline = False
        return epoch

    def of_run(
        self, sets: str | Weights, run: Run, job: str | None, timeout: float | None, state: RunState | None
    ) -> Generator[Epoch, None, None]:  # fmt: skip
        """Yields the epochs of `run`, each leased until the next is acquired. `state`: to resume from."""
        current: Epoch | None = None
        following: Epoch | None = None
        try:
            while not run.over:
                number = run.number
                wanted = self._leases.epoch_request(number, job, timeout, current)
                weights: Mapping[str, float] = {}
                if state is not None and not state.over:
                    weights = state.weights  # the resumed epoch keeps its weights
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
            # Both, because an interrupt may occur between the two releases, or during a release.
            with ExitStack() as releasing:
                for epoch in (current, following):
                    if epoch is not None:
                        releasing.callback(epoch.release)

    def _acquire(
        self, wanted: EpochRequest, sets: str | Mapping[str, float], run: Run, state: RunState | None
    ) -> Epoch:  # fmt: skip
        """Returns the run's next epoch, of one dataset or of a mixture. All sets are leased when this
        returns; after an error, none is."""
        # In the same order on all ranks, so that they wait for the same set and raise the same error.
        if state is not None and not state.over:
            names = sorted(state.sets)  # also sets whose weight became 0
        elif isinstance(sets, str):
            names = [sets]
        else:
            names = sorted(name for name, share in sets.items() if share)
        known = {} if state is None else state.sets
        saved = {name: known[name] for name in names if name in known}
        if state is not None and state.over:
            saved = {name: replace(one, fingerprint="") for name, one in saved.items()}
        if len(saved) > 1:
            # Before waiting for any set, because a dataset adopts a state only before its first shard.
            for name, one in saved.items():
                self._leases.request(wanted, name, one)
        leased: list[LeasedSet] = []
        with ExitStack() as releasing:
            for name in names:
                leased.append(acquired := self._leases.acquire(wanted, name, saved.get(name)))
                releasing.callback(acquired.release)
            run.count_tokens([one.schema for one in leased])
            now = {one.dataset: one.manifest for one in leased}
            same = {name for name, one in saved.items() if one.is_set_of(now[name])}
            for name, one in saved.items():
                if one.fingerprint and name not in same:
                    log.warning(
                        "%s: epoch %d starts again with the current set, because the set of the state is "
                        "no longer cached",
                        name, wanted.epoch,
                    )  # fmt: skip
            resumed = state if len(same) == len(names) else None
            if state is not None:
                other_cache = state.is_ahead_of(list(now.values()))
                run.resumed(state, resumed is not None, other_cache)
            if isinstance(sets, str):
                epoch = Epoch(leased[0], run, resumed)
            else:
                epoch = Mixture(leased, sets, run, resumed)
            releasing.pop_all()
        return self._leases.watch(epoch)
