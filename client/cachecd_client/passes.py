"""The passes that an epoch's loaders make over its set, and what they come to in its run."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cachecd_client.elsewhere import Lent
from cachecd_client.run import Part, Run
from cachecd_client.telemetry import Telemetry

if TYPE_CHECKING:
    from cachecd_client.loader import Loader


@dataclass(frozen=True, slots=True)
class _Pass:
    """So many steps, of so many records over all ranks; what it reads of the set, where that is a part."""

    steps: int
    step: int
    part: Part | None

    @property
    def records(self) -> int:
        """Over all ranks."""
        return self.steps * self.step


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """What others were lent, and the loader that makes it if it is read here after all."""

    lent: Lent
    whole: _Pass
    loader: weakref.ref[Loader] | None


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
        self._longest: _Pass | None = None
        self._elsewhere: _Elsewhere | None = None  # lent last
        self._loaders: weakref.WeakSet[Loader] = weakref.WeakSet()

    @property
    def progress(self) -> float:
        """0..1, of the run, or of the latest pass where there is no run."""
        latest = None if self._latest is None else self._latest()
        if latest is not None:
            self._done = latest.position / len(latest)
        elif self._longest is None and (share := self.telemetry.share_elsewhere) is not None:
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
        begun = _Pass(len(loader), loader.batch_size * loader.world, loader.part)
        # A look at a few batches, before the others or behind them, is not what the epoch reads.
        if self._longest is None or self._longest.records <= begun.records:
            self._longest = begun
        elsewhere = self._elsewhere
        if elsewhere and elsewhere.loader and elsewhere.loader() is loader:
            self.telemetry.take_back(elsewhere.lent)
            self._elsewhere = None
        self.telemetry.began(loader)

    def ended(self, loader: Loader) -> None:
        """Its pass is over."""
        self.telemetry.ended(loader)
        self._done = loader.position / len(loader)

    def lend(self, lent: Lent, loader: Loader | None) -> None:
        """Others are to read it: what this loader would read, unless it begins itself."""
        whole = _Pass(lent.steps, lent.step, loader.part if loader else None)
        self._elsewhere = _Elsewhere(lent, whole, weakref.ref(loader) if loader else None)
        self.telemetry.lend(lent)

    def close(self) -> None:
        """Ends those that run; none begins after that."""
        for loader in list(self._loaders):
            loader.close()

    def tell_run(self) -> None:
        """Tells the run what was read: as is counted, or as much as others were to read, of which nobody
        tells here; where neither is known, all once."""
        if self._run is None:
            return
        elsewhere = self._elsewhere
        passes = [one for one in (self._longest, elsewhere and elsewhere.whole) if one]
        if not passes:
            self._run.ended(self.length, 1, None)
            return
        read = self.rows
        # Where none was counted nobody knows, and a run of records has to end.
        if elsewhere and not (elsewhere.lent.stretch and self.telemetry.rows):
            read = max(read, elsewhere.whole.records)
        longest = max(passes, key=lambda one: one.records)
        self._run.ended(read, longest.step, longest.part)

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
