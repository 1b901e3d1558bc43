"""The passes that an epoch's loaders make over its set, and what they come to in its run."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from cachecd_client.elsewhere import Lent
from cachecd_client.run import Part, Run
from cachecd_client.telemetry import Telemetry

if TYPE_CHECKING:
    from cachecd_client.loader import Loader


class Passes:
    """Of all loaders of one epoch in this process. `telemetry` counts them; this says what that means."""

    def __init__(self, number: int, length: int, telemetry: Telemetry, run: Run | None) -> None:
        """`number` is the epoch's in `run`; `length`: records of one pass, over all ranks."""
        self.number = number
        self.length = length
        self.telemetry = telemetry
        self._run = run
        self.before = 0 if run is None else run.read
        """Records of the epochs before it, over all ranks."""
        self.earlier = 0
        """Of this one, what an earlier process read."""
        self._done = 0.0  # share of the latest pass
        self._latest: weakref.ref[Loader] | None = None  # whose pass began last
        self._step: tuple[int, Part | None] | None = None  # its records of a step, and its part
        self._elsewhere: tuple[Lent, Part | None] | None = None
        self._loaders: weakref.WeakSet[Loader] = weakref.WeakSet()

    @property
    def progress(self) -> float:
        """0..1, of the run, or of the latest pass where there is no run."""
        latest = None if self._latest is None else self._latest()
        if latest is not None:
            self._done = latest.position / len(latest)
        elif self._step is None and (share := self.telemetry.share_elsewhere) is not None:
            self._done = share
        if self._run is None:
            return self._done
        return self._run.progress(self.number, self._done, self.before + self.rows)

    def go_on(self, read: int, share: float) -> None:
        """An earlier process read so many records of it, which is that `share` of a pass."""
        self.earlier, self._done = read, share

    def begin_anew(self) -> None:
        """What an earlier process read of it was read before it."""
        self.before += self.earlier
        if self._run is not None:
            self._run.read += self.earlier
        self.earlier, self._done = 0, 0.0

    @property
    def rows(self) -> int:
        """Records that were read of this epoch, over all ranks."""
        return self.earlier + self.telemetry.rows

    def add(self, loader: Loader) -> None:
        """It is one of this epoch's."""
        self._loaders.add(loader)

    def began(self, loader: Loader) -> None:
        """Its pass has begun."""
        self._latest = weakref.ref(loader)
        self._step = loader.batch_size * loader.world, loader.part
        self.telemetry.began(loader)

    def ended(self, loader: Loader) -> None:
        """Its pass is over."""
        self.telemetry.ended(loader)
        self._done = loader.position / len(loader)

    def lend(self, lent: Lent, part: Part | None) -> None:
        """Others are to read it."""
        self._elsewhere = lent, part
        self.telemetry.lend(lent)

    def close(self) -> None:
        """Ends those that run; none begins after that."""
        for loader in list(self._loaders):
            loader.close()

    def tell_run(self) -> None:
        """Tells the run what was read: by passes here, or else by others, or all once."""
        if self._run is None:
            return
        if self._step is not None:
            self._run.ended(self.rows, *self._step)
        elif self._elsewhere is not None:
            lent, part = self._elsewhere
            # Where none was counted nobody knows, and a run of records has to end.
            self._run.ended(self.rows or lent.steps * lent.step, lent.step, part)
        else:
            self._run.ended(self.length, 1, None)

    def __getstate__(self) -> dict[str, Any]:
        # What other processes read they count themselves.
        return {
            **self.__dict__,
            "_loaders": None,
            "_latest": None,
            "_elsewhere": None,
            "telemetry": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Without `telemetry`, which whoever has both makes anew."""
        self.__dict__.update(state, _loaders=weakref.WeakSet())
