"""A dataset of batches, for torch's DataLoader and its workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from cachecd_client.errors import CallerError
from cachecd_client.options import integer

if TYPE_CHECKING:
    from cachecd_client.loader.loader import Loader
    from cachecd_client.loader.options import Batch

_ALONE = {"worker": 0, "workers": 1}


class BatchDataset(IterableDataset["Batch"]):
    """The batches of one loader, which the workers of a DataLoader make in turn.

    `DataLoader(dataset, batch_size=None, num_workers=N)` delivers the batches of `torch()` with the same
    options and in the same order, for every N and every way to start workers. Worker w makes the batches
    w, w + N, w + 2N ... in its own process; for a lease, each worker has its own lock. Made by
    `to_dataset()`.

    Without workers, passes are numbered as in `Loader`. Workers do not know the number of earlier passes,
    so with workers every pass has the number of the last `set_epoch`, 0 at first. A second pass with the
    same number logs a warning.

    torchdata's StatefulDataLoader calls `state_dict()` and `load_state_dict()` in each worker. A state that
    was taken without workers, or by `torch()`, continues with any number of workers.
    """

    def __init__(
        self, make: Callable[..., Loader], begin: dict[str, Any] | None = None,
        shared: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """`make(every=, threads=)` makes a loader; it is pickled for workers that are not forked.

        `begin`: the state at which the next pass begins. `shared`: shared memory with the number and the
        first batch of the next pass, and how many passes workers have begun with that number.
        """
        self._make = make
        #: Makes the batches, in this process.
        self.loader = make()
        if begin is not None:
            self.loader.load_state_dict(begin)
        self._next = self.loader.next_pass  # the first pass of workers that are started later
        self._shared = torch.tensor((*self._next, 0)) if shared is None else shared
        self._shared.share_memory_()  # type: ignore[no-untyped-call]
        self._turn = _ALONE  # the worker to which `loader` belongs
        self._process = os.getpid()
        self._has_begun = False  # this worker has begun a pass

    def __len__(self) -> int:
        """Batches of a whole pass of all workers, the same on every rank."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        """The next pass from its start, or the rest of the pass that `load_state_dict` set; in a worker of
        a DataLoader, the batches of this worker.

        A dataset has one pass at a time. CallerError if workers have continued that pass before.
        """
        # A dataset has no reference to its DataLoader, but the DataLoader's fetcher calls this method.
        fetcher: Any = sys._getframe(1).f_locals.get("self")
        if getattr(fetcher, "auto_collation", False) and fetcher.collate_fn is default_collate:
            raise CallerError(
                "the dataset delivers batches, but the DataLoader would combine them into larger batches: "
                "DataLoader(dataset, batch_size=None)"
            )
        turn = self._own()
        if get_worker_info() is not None:
            if self._has_begun:  # a persistent worker reads the next pass from shared memory
                number, start, _ = self._shared.tolist()
                self._continue(number, start, turn["worker"])
            self._has_begun = True
            if not turn["worker"]:
                return self._counted()
        return iter(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next pass, as `Loader.set_epoch`; call it between passes.

        All workers use this number, even persistent workers.
        """
        number = integer("epoch", epoch, 0)
        if self._shared[2]:
            self.loader.set_epoch(number ^ 1)  # drops a state that workers have continued
        self.loader.set_epoch(number)
        self._share()

    def state_dict(self) -> dict[str, Any]:
        """The position of the pass of this process, as plain values."""
        turn = self._own()
        if get_worker_info() is None:
            return self.loader.state_dict()
        # Only the pass, because a worker sends this with each batch and resumes only its pass.
        return self.loader.pass_state() | turn

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next pass continue, as `Loader.load_state_dict`.

        CallerError as there, and for the state of another worker, or for another number of workers.
        """
        turn = self._own()
        worker = {key: state[key] for key in _ALONE if key in state}
        if worker and worker != turn:
            raise CallerError(
                f"the state belongs to worker {worker.get('worker')} of {worker.get('workers')}, this is "
                f"worker {turn['worker']} of {turn['workers']}: resume with the same number of workers"
            )
        self.loader.load_state_dict(state)
        if get_worker_info() is None:
            self._share()
        elif not worker:
            self._continue(*self.loader.next_pass, turn["worker"])

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchDataset, (self._make, self._state(*self._next), self._shared)

    def _own(self) -> dict[str, int]:
        """Makes a loader if the process is new. Returns the worker to which the loader belongs."""
        info = get_worker_info()
        turn = _ALONE if info is None else {"worker": info.id, "workers": info.num_workers}
        if turn != self._turn or os.getpid() != self._process:
            self.loader = self._make(every=turn["workers"], threads=1 if info else 0)
            self._continue(*self._next, turn["worker"])
            self._turn, self._process = turn, os.getpid()
            self._has_begun = False
        return turn

    def _share(self) -> None:
        """Lets workers begin with the next pass of the loader."""
        self._next = self.loader.next_pass
        self._shared[:] = torch.tensor((*self._next, 0))

    def _counted(self) -> Iterator[Batch]:
        """Yields the pass of worker 0, and counts the passes with this number for all workers."""
        self._shared[2] += 1
        number, start, begun = self._shared.tolist()
        if begun > 1 and start:
            raise CallerError(
                f"the state of pass {number}, batch {start}, was continued before: call set_epoch(n) for "
                "another pass, or load_state_dict(state) to continue it again"
            )
        if begun == 2:
            self.loader.warn_of_same_order(number)
        yield from self.loader

    def _state(self, number: int, position: int) -> dict[str, Any]:
        return {**self.loader.pass_state(), "pass": number, "position": position}

    def _continue(self, number: int, start: int, worker: int) -> None:
        """Makes this pass, from batch `start` on, the next pass of the worker's loader."""
        self.loader.load_state_dict(self._state(number, min(start + worker, len(self))))
