"""Keeps the index of a dataset listed: tries again what fails, and lists its sources again.

Each source is listed by itself, side by side with the others, and as if it were alone.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from cachecd.config import DatasetConfig, SourceConfig
from cachecd.errors import (
    ConfigError,
    DiskError,
    NoRoomError,
    RewrittenError,
    SourceError,
    SourceUnreachableError,
)
from cachecd.events import Event, Listed, ListingStopped, Relisted
from cachecd.executors.lister import Lister
from cachecd.index import Index
from cachecd.indexroom import DatasetRoom
from cachecd.listing import Listing
from cachecd.listpages import CircleError
from cachecd.progress import Progress
from cachecd.relisting import Holds
from cachecd.selection import selection_of
from cachecd.sourceindex import SourceIndex
from cachecd.unittext import for_the_log

_LONGEST_PAUSE = 60.0  # a source that is back is found within a minute
# After so many failures in a row, some ten seconds, what is listed is walked as if it were all.
_PATIENCE = 5

_log = structlog.get_logger("cachecd.listing")


async def keep_listed(
    name: str,
    config: DatasetConfig,
    lister: Lister,
    index: Index,
    room: DatasetRoom,
    holds: Holds,
    progress: Progress,
    feed: Callable[[Event], None],
    awaits: str = "",
    judges: bool = False,
) -> None:
    """Lists each source until that has succeeded once in this run; the index on disk serves till then.
    Then again every `relist` seconds, or if that takes longer than half of them, after as long a pause.

    Feeds Listed whenever more may be walked, ListingStopped after every failure, and Relisted when a
    listing of what was known has come to its end. `holds` says which units are held, `awaits` why none may
    be walked before the end. `judges`: a source whose first listing shows that most of its objects are
    rewritten is refused, as another store than before.
    """
    if awaits and not index.complete:
        _log.info("sampling waits for the end of the listing", dataset=name, why=awaits)
    sources = config.all_sources
    if len(sources) == 1:
        alone = _OneSource(
            name, config, sources[0], index, index, room, holds, progress, feed, judges
        )
        await alone.keep_listed(lister)
        return
    parts = zip(sources, SourceIndex.of(index), progress.divide(len(sources)), strict=True)
    each = [
        _OneSource(
            name,
            config,
            source,
            index,
            its,
            room.of(place),
            its.holds(holds),
            part,
            feed,
            judges,
            place,
        )
        for place, (source, its, part) in enumerate(parts)
    ]
    await asyncio.gather(*(one.keep_listed(lister) for one in each))


@dataclass(slots=True)
class _OneSource:
    """The listing of a source, again and again; `index` is what it has of the `whole`."""

    name: str
    config: DatasetConfig
    source: SourceConfig
    whole: Index
    index: Index | SourceIndex
    room: DatasetRoom
    holds: Holds
    progress: Progress
    feed: Callable[[Event], None]
    judges: bool
    place: int = 0
    doubts: bool = False  # said, in this listing

    async def keep_listed(self, lister: Lister) -> None:
        relist, progress, index = self.config.relist, self.progress, self.index
        again = False
        while True:
            self.doubts = False
            progress.begin(time.monotonic())
            listing = Listing(
                self.source,
                index,
                self.room,
                self._listed,
                self.holds,
                progress,
                more_to_come=relist is not None,
                takes=selection_of(self.config),
                judges=self.judges and not again,
                doubted=self._doubted,
            )
            await self._until_listed(listing, lister, relist if again else None)
            progress.end(time.monotonic())
            took = round(progress.took, 1)
            _log.info("source listed", **self._which(), units=len(index), took_s=took)
            if listing.left_out:
                progress.failed = listing.left_out
                _log.warning("source not listed", **self._which(), why=listing.left_out)
            if listing.gone is not None:
                gone, back = listing.gone
                if isinstance(index, SourceIndex):
                    gone, back = index.numbers(gone), index.numbers(back)
                if len(gone) or len(back):
                    _log.info("source changed", **self._which(), gone=len(gone), back=len(back))
                self.feed(Relisted(self.name, gone, back))
            self._listed(fresh=True)
            if relist is None:
                return
            again = True
            await asyncio.sleep(max(relist - progress.took, progress.took))

    def _listed(self, fresh: bool = False) -> None:
        complete = self.whole.complete
        self.feed(Listed(self.name, len(self.whole), complete, fresh, self.place))

    def _doubted(self, why: str) -> None:
        if self.doubts:
            return
        self.doubts = True
        why = self._reason(f"{why}: nothing is fetched until the listing is at its end, and tells")
        _log.warning("source in doubt", **self._which(), why=why)
        self.feed(ListingStopped(self.name, why, source=self.place, doubted=True))

    def _which(self) -> dict[str, str]:
        """For the log."""
        which = {"dataset": self.name}
        return which | {"source": self.source.name} if self._is_part else which

    def _reason(self, why: str) -> str:
        return f"sources.{self.place} ({self.source.name}): {why}" if self._is_part else why

    @property
    def _is_part(self) -> bool:
        return isinstance(self.index, SourceIndex)

    async def _until_listed(self, listing: Listing, lister: Lister, patient: float | None) -> None:
        """`patient`: what is known was listed in this run already, and failures may wait so long."""
        failures, index, source = 0, self.index, self.source
        while True:
            length = len(index)
            try:
                await listing.go_on(partial(lister.units, source), partial(lister.sweep, source))
            except Exception as error:
                if not isinstance(error, (SourceError, DiskError, NoRoomError, ConfigError)):
                    # Whatever a store's library raises is that store's trouble, and may pass.
                    _log.exception("listing failed otherwise than thought", **self._which())
                    error = SourceUnreachableError(
                        f"{type(error).__name__}: {for_the_log(str(error))}"
                    )
                refused = isinstance(error, RewrittenError)
                if refused:
                    error = RewrittenError(
                        f"{source.url}: {error}: this seems to be another store than before, and nothing "
                        "is fetched from it. Is the endpoint right? If the objects were rewritten on "
                        f"purpose, set generation: {self.config.generation + 1}"
                    )
                failures = failures + 1 if len(index) == length else 1
                # The limit does not change by itself, nor does a store that goes round in circles.
                hopeless = isinstance(error, (ConfigError, CircleError))
                stuck = failures >= _PATIENCE or hopeless
                down = isinstance(error, SourceError) and not isinstance(error, CircleError)
                down = down and not refused
                longest = min(2.0**failures, _LONGEST_PAUSE)
                pause = random.uniform(0, longest)
                if patient is not None:
                    # What is listed is sampled as before: whether the store is down shows there.
                    down = False
                    pause = patient if stuck or isinstance(error, NoRoomError) else pause
                if refused:  # each look at it takes a whole listing
                    stuck, pause = False, _LONGEST_PAUSE
                _log.warning(
                    "source not listed",
                    **self._which(),
                    why=str(error),
                    units=len(index),
                    again_in_s=round(pause, 1),
                )
                self.progress.failed = str(error)
                why = self._reason(str(error))
                down = down and not self._is_part
                self.feed(ListingStopped(self.name, why, stuck, down, self.place, refused))
                await asyncio.sleep(pause)
            else:
                return
