"""A file set as a dataset of batches, for torch's DataLoader and its workers."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, get_worker_info

from cachecd_client.errors import CallerError
from cachecd_client.options import integer
from cachecd_client.pass_numbers import PassNumbers

if TYPE_CHECKING:
    from cachecd_client.loader import Batch, Loader

log = logging.getLogger("cachecd")

_ALONE = {"worker": 0, "workers": 1}
# Batches of a worker: a DataLoader asks each for two before it gives the first, and few people for more.
_LOOK = 8


class BatchDataset(IterableDataset["Batch"]):
    """The batches of one loader, which the workers of a DataLoader make in turn.

    `DataLoader(dataset, batch_size=None, num_workers=N)` delivers the batches of `torch()` with the
    same options, in their order and `len()` of them, whatever N and however the workers are
    started: worker w makes the batches w, w + N, w + 2N ... in a process and, of a lease, under a
    lock of its own. Made by `to_dataset()`. Each pass is shuffled by its number, which workers agree on
    among themselves. Ranks that may begin different numbers of passes take it from `set_epoch`: without
    workers a pass that was left after its first batch does not count, as with `Loader`; with workers it
    does, and a warning says so.

    `state_dict()` and `load_state_dict()` are what torchdata's StatefulDataLoader asks of a dataset,
    in each worker. A state taken without workers, or of `torch()`, continues with any number of them.
    """

    def __init__(
        self,
        make: Callable[..., Loader],
        begin: dict[str, Any] | None = None,
        numbers: PassNumbers | None = None,
    ) -> None:
        """`make(every=, threads=)` makes a loader; it is pickled for workers that are not forked.

        `begin`: a state at which the first pass begins. `numbers`: of its passes, in other processes too.
        """
        self._make = make
        self._numbers = PassNumbers() if numbers is None else numbers
        self._begun = 0  # passes of this process
        #: Makes its batches, in this process.
        self.loader = make()
        self._turn = _ALONE  # of whom the loader is
        self._process = os.getpid()
        self._begin = begin  # the state at which the next pass does
        self._latest: int | None = None  # the pass begun last, unless its follower was named since

    def __len__(self) -> int:
        """Batches of a whole pass over all workers, the same on every rank."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        """The next pass from its start, or the rest of that which `load_state_dict` gave.

        In a DataLoader's worker its own batches of it. A dataset has one pass at a time.
        """
        turn = self._own()
        begin, self._begin = self._begin, None
        # A worker's own state says which pass it was of.
        known = None if begin is None or "workers" not in begin else begin["pass"]
        if turn == _ALONE and self._latest is not None and not self.loader.pass_counts:
            self._numbers.set_next(self._latest)
        key = self._key()
        number, resumes, after_look = self._numbers.begin(key, known)
        self._latest = number
        state = {**self.loader.pass_state(), "pass": number, "position": 0}
        if begin is not None and (resumes or known is not None):
            state.update(begin)
        if "workers" not in state:
            state["position"] = min(state["position"] + turn["worker"], len(self))
        self.loader.load_state_dict(state)
        if turn == _ALONE or self.loader.world == 1:
            return iter(self.loader)
        if after_look and not turn["worker"]:
            log.warning(
                "pass %d of rank %d of %d begins after one that was left early: if other ranks have not "
                "left it too, ranks now read the same records and miss others; call "
                "dataset.set_epoch(n) before each pass, on all ranks",
                number, self.loader.rank, self.loader.world,
            )  # fmt: skip
        return self._telling(key)

    def _telling(self, key: int) -> Iterator[Batch]:
        """The pass, of which it tells other workers when it was more than a look."""
        for count, batch in enumerate(self.loader, 1):
            if count == _LOOK:
                self._numbers.read(key)
            yield batch
        self._numbers.read(key)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass the one of this number, as `Loader.set_epoch`.

        Workers see it, persistent ones too.
        """
        number = integer("epoch", epoch, 0)
        if self._begin is None or self._begin["pass"] != number:
            self._begin = self._latest = None
            self._numbers.set_next(number)

    def _key(self) -> int:
        """Of the pass that begins, the same in all workers of it."""
        self._begun += 1
        info = get_worker_info()
        if info is None:
            return int.from_bytes(os.urandom(8), "little")
        # The seed is drawn for each set of workers; persistent ones begin one pass after another.
        text = f"{info.seed - info.id} {self._begun}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")

    def state_dict(self) -> dict[str, Any]:
        """Where this process's pass stands: plain values."""
        turn = self._own()
        if self._begin is not None:
            return self._begin
        if turn == _ALONE:
            return self.loader.state_dict()
        # It goes from process to process with each batch, and a worker resumes nothing but its pass.
        return self.loader.pass_state() | turn

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next pass continue after the batch that `state` had delivered last.

        CallerError, as of `Loader.load_state_dict`, and for the state of another worker, or of one
        among another number of workers.
        """
        turn = self._own()
        found = {key: state[key] for key in _ALONE if key in state}
        if found and found != turn:
            raise CallerError(
                f"the state is of worker {found.get('worker')} of {found.get('workers')}, this is "
                f"worker {turn['worker']} of {turn['workers']}: resume with as many workers"
            )
        self.loader.load_state_dict(state)
        self._begin, self._latest = state, None
        if turn == _ALONE:
            self._numbers.set_next(state["pass"], resumes=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchDataset, (self._make, self._begin, self._numbers)

    def _own(self) -> dict[str, int]:
        """Sees to it that the loader is this process's, and says which worker's that is."""
        info = get_worker_info()
        turn = _ALONE if info is None else {"worker": info.id, "workers": info.num_workers}
        if turn != self._turn or os.getpid() != self._process:
            self.loader = self._make(every=turn["workers"], threads=1 if info else 0)
            self._turn, self._process = turn, os.getpid()
            self._begun = 0
        return turn
