"""One loader for a whole run: each `iter()` leases and reads the next epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, NoReturn, Self

from cachecd_client.errors import CallerError
from cachecd_client.loader.loader import NO_ITEMS, Loader
from cachecd_client.loader.options import Batch, Options
from cachecd_client.loader.reading import LARGEST_SEED, seed_of
from cachecd_client.options import integer
from cachecd_client.report.summary import Report
from cachecd_client.runs.epoch import Epoch
from cachecd_client.runs.run import RunOptions

log = logging.getLogger("cachecd")

_CLOSED = "this loader is closed: make another one"


class RunLoaderOptions(RunOptions, Options, total=False):
    """The options of a run, which `Cache.epochs` explains, and of its loaders, which `Loader` explains."""


class RunLoader:
    """Iterates over batches, one epoch of the run for each `for` loop.

    Each epoch is leased before the previous lease ends, as with `Cache.epochs`. An epoch begins with the
    first batch of a loop; leaving a loop early ends its epoch. When the run has ended, loops deliver no
    batches and log a warning, because after a resume, a program may loop more often than the run has
    epochs left.

    The first epoch is leased when it is needed: by a loop, `len()`, `epoch`, `state_dict()`, `progress` or
    `report()`. The last lease ends with the last batch, with `close()` or with the session.

    Made by `Cache.numpy`, `torch`, `tf` and `jax`. Use it from one thread at a time.
    """

    def __init__(
        self, begin: Callable[[Mapping[str, Any] | None], Generator[Epoch, None, None]],
        make: Callable[[Epoch, Options], Loader], options: Options, state: Mapping[str, Any] | None,
    ) -> None:  # fmt: skip
        """`begin` begins the run at a state; `make` makes the loader for an epoch."""
        self._begin = begin
        self._make = make
        self._options = options
        self._state = state
        self._epochs = begin(state)
        self._epoch: Epoch | None = None  # the epoch whose pass runs, ran last, or is next
        self._loader: Loader | None = None
        self._has_begun = False  # a pass of `_loader` has begun
        self._is_over = self._is_closed = False
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the next epoch, or the rest of the epoch at which the run resumes."""
        if self._has_begun or self._loader is None:
            self._advance()
        loader, epoch = self._loader, self._epoch
        if self._is_over or loader is None or epoch is None:
            log.warning("the run has ended: this loop gets no batches")
            return
        self._has_begun = True
        yield from loader
        if loader.position == len(loader) and epoch.ends_run(loader):
            self._advance()  # ends the lease

    def __len__(self) -> int:
        """Steps of the epoch whose pass runs or ran last, or of the first epoch; 0 if the run has no epoch.

        It changes when a loop begins: the next set may be larger. `steps_per_epoch` makes it constant.
        """
        return 0 if (loader := self._current()) is None else len(loader)

    @property
    def epoch(self) -> Epoch | None:
        """The epoch whose pass runs or ran last, or the first epoch; None if the run has no epoch."""
        self._current()
        return self._epoch

    @property
    def progress(self) -> float:
        """0..1: the progress of the run; it changes with every batch."""
        return 1.0 if (epoch := self.epoch) is None else epoch.progress

    def report(self) -> Report:
        """The figures of `epoch`: `Epoch.report`. CallerError if the run has no epoch."""
        if (epoch := self.epoch) is None:
            raise CallerError(
                "the run has ended, and no epoch was read here: there is nothing to report"
            )
        return epoch.report()

    def state_dict(self) -> dict[str, Any]:
        """The position of the run as plain values, the same on every rank at the same step.

        Resume with `state=` of a loader in another process, or with `load_state_dict()`.
        """
        if (loader := self._current()) is not None:
            return loader.state_dict()
        return dict(self._state or {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes the run at `state`, as `state=` does. Releases the current epoch.

        CallerError, and nothing changes, if `state` is not the state of such a run.
        """
        if self._is_closed:
            raise CallerError(_CLOSED)
        epochs = self._begin(state)
        self._epochs.close()
        self._epochs, self._state = epochs, state
        self._epoch = self._loader = self._error = None
        self._has_begun = self._is_over = False

    def close(self) -> None:
        """Ends the pass and the lease permanently. Idempotent; batches stay valid."""
        self._is_closed = True
        self._epochs.close()

    def __getitem__(self, index: object) -> NoReturn:
        raise CallerError(NO_ITEMS)

    def __repr__(self) -> str:
        held = "no epoch yet" if self._epoch is None else f"{self._loader!r} of {self._epoch!r}"
        return f"<RunLoader: {held}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise CallerError(
            "a loader of a run has threads and a lease, which cannot be pickled: make the loader in the "
            "process that reads"
        )

    def _current(self) -> Loader | None:
        if self._loader is None and not self._is_over:
            self._advance()
        return self._loader

    def _advance(self) -> None:
        """Acquires the next epoch, or finds that the run has ended."""
        if self._is_over:
            return
        if self._is_closed:
            raise CallerError(_CLOSED)
        if self._error is not None:
            raise CallerError(
                f"this run ended with an error ({self._error!r}): make another loader with state=, or call "
                "load_state_dict() with the last state"
            ) from self._error
        try:
            epoch = next(self._epochs, None)
            if epoch is None:
                self._is_over = True
                return
            self._loader = self._make(epoch, self._options_for(epoch))
        except BaseException as error:  # an interrupt also ends the generator
            self._error = error
            self._epochs.close()
            raise
        self._epoch, self._has_begun = epoch, False

    def _options_for(self, epoch: Epoch) -> Options:
        """Returns the options for the epoch. The seed differs, so that each epoch has another order."""
        seed = self._options.get("seed")
        if seed is None or not self._options.get("reshuffle", True):
            return self._options
        seed = integer("seed", seed, 0, LARGEST_SEED)
        return {**self._options, "seed": seed_of(seed, epoch.epoch)}
