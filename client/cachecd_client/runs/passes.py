"""The passes of an epoch's loaders: the records that count as read in the run, and as delivered."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from cachecd_client.loader.sweep import Part
from cachecd_client.report.telemetry import Lent, Telemetry
from cachecd_client.runs.run import Run

if TYPE_CHECKING:
    from cachecd_client.loader.loader import Loader


class _Read(NamedTuple):
    """The records that one pass read over all ranks, in steps of `step`, of the set or of a part of it."""

    records: int
    step: int
    part: Part | None


class _Elsewhere(NamedTuple):
    """Batches given to another reader, and the loader that reads them if it begins a pass here."""

    lent: Lent
    part: Part | None
    loader: weakref.ref[Loader] | None

    @property
    def read(self) -> _Read:
        """All of them: other readers do not count."""
        lent = self.lent
        return _Read(lent.steps * lent.step, lent.step, self.part)


class Passes:
    """All passes over one epoch in this process. `telemetry` has their figures."""

    def __init__(self, number: int, length: int, telemetry: Telemetry, run: Run | None) -> None:
        """`number`: of the epoch in `run`; `length`: records of one pass, over all ranks."""
        self.number = number
        self.length = length
        self.telemetry = telemetry
        self._run = run
        self.before = 0 if run is None else run.read
        """Records of the epochs before this one, over all ranks."""
        self.earlier = 0
        """Records of this epoch that an earlier process read."""
        self._done = 0.0  # share of the latest pass
        self._latest: weakref.ref[Loader] | None = None  # the loader whose pass began last
        self._most: _Read | None = None  # the longest pass that is over
        self._delivered = 0  # records, by the passes that are over
        self._elsewhere: list[_Elsewhere] = []
        self._loaders: weakref.WeakSet[Loader] = weakref.WeakSet()
        self._counts = False  # a loader was made, or another reader was given batches

    @property
    def progress(self) -> float:
        """0..1, of the run, or of the latest pass if there is no run."""
        latest = None if self._latest is None else self._latest()
        if latest is not None:
            self._done = latest.position / len(latest)
        if self._run is None:
            return self._done
        return self._run.progress(self.number, self._done, self.before + self.rows)

    def go_on(self, read: int, share: float) -> None:
        """Resumes: an earlier process read `read` records of this epoch, a `share` of its pass."""
        self.earlier, self._done = read, share

    def begin_anew(self) -> None:
        """Begins the epoch with its first batch: records that an earlier process read count before it."""
        self.before += self.earlier
        if self._run is not None:
            self._run.read += self.earlier
        self.earlier, self._done = 0, 0.0

    @property
    def rows(self) -> int:
        """Rows that were read of this epoch, over all ranks."""
        return self.earlier + self.telemetry.rows

    def add(self, loader: Loader) -> None:
        """Adds a loader of this epoch."""
        self._loaders.add(loader)
        self._counts = True

    def began(self, loader: Loader) -> None:
        """A pass of the loader has begun."""
        self._latest = weakref.ref(loader)
        for one in list(self._elsewhere):
            if one.loader is not None and one.loader() is loader:
                self._elsewhere.remove(one)
                self.telemetry.take_back(one.lent)
        self.telemetry.began(loader)

    def ended(self, loader: Loader) -> None:
        """The pass of the loader is over."""
        self.telemetry.ended(loader)
        self._done = loader.position / len(loader)
        self._most = _most([self._most, _read(loader)])
        self._delivered += _delivered(loader)

    def lend(self, lent: Lent, loader: Loader | None) -> None:
        """Another reader gets the batches that `loader` would read, unless it begins a pass here."""
        part, made_by = (loader.part, weakref.ref(loader)) if loader is not None else (None, None)
        self._elsewhere.append(_Elsewhere(lent, part, made_by))
        self._counts = True
        self.telemetry.lend(lent)

    def delivered(self, records: int) -> int | None:
        """Records of the set, which has `records`, that were delivered over all ranks, or given to other
        readers. None if there was no reader."""
        if not self._counts:
            return None
        elsewhere = [one.read for one in self._elsewhere]
        lent = [
            records if abs(one.records - records) < one.step else one.records for one in elsewhere
        ]
        return self._delivered + sum(map(_delivered, self._running())) + sum(lent)

    def _running(self) -> list[Loader]:
        return [loader for loader in list(self._loaders) if self.telemetry.is_running(loader)]

    def close(self) -> None:
        """Ends all passes; no pass begins afterwards."""
        for loader in list(self._loaders):
            loader.close()

    def report_to_run(self) -> None:
        """Reports to the run the records that were read: by loaders here, or by other readers if they were
        given more; the whole set once, if there was no reader."""
        if self._run is None:
            return
        running = [_read(loader) for loader in self._running()]
        # Of several datasets, the last one is probably the one in use.
        elsewhere = [one.read for one in self._elsewhere[-1:]]
        # The longest pass decides how the run continues: an inspection of some records is short.
        most = _most([self._most, *running, *elsewhere])
        if most is None:
            self._run.ended(self.length, 1, None)
            return
        read = max([self.rows, *(one.records for one in elsewhere)])
        self._run.ended(read, most.step, most.part)

    def __getstate__(self) -> dict[str, Any]:
        # Other processes count their own passes.
        return {
            **self.__dict__,
            "_loaders": None,
            "_latest": None,
            "_elsewhere": [],
            "telemetry": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Without `telemetry`, which the epoch makes anew."""
        self.__dict__.update(state, _loaders=weakref.WeakSet())


def _read(loader: Loader) -> _Read:
    """The records that the pass of the loader has delivered, in an earlier process too."""
    step = loader.batch_size * loader.world
    return _Read(loader.position * step, step, loader.part)


def _is_cut(loader: Loader) -> bool:
    """Whether a pass leaves out a step or more, because another node has fewer records."""
    step = loader.batch_size * loader.world
    return loader.part is None and loader.division.records - loader.division.steps * step >= step


def _delivered(loader: Loader) -> int:
    """Records that the loader's pass has delivered here, over all ranks, since it was resumed. Records that
    `drop_last` leaves out of a whole pass, less than a step, count too."""
    step, records = loader.batch_size * loader.world, loader.division.records
    is_whole = loader.position == len(loader) and not _is_cut(loader)
    end = records if is_whole else min(loader.position * step, records)
    return end - min(loader.start * step, records)


def _most(passes: Iterable[_Read | None]) -> _Read | None:
    return max((one for one in passes if one), key=lambda one: one.records, default=None)
