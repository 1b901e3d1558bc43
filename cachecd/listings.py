"""Keeps the index of a dataset listed: tries again what fails, and lists its source again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from cachecd.config import DatasetConfig
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
from cachecd.indexing import Listing
from cachecd.indexroom import DatasetRoom
from cachecd.listpages import CircleError
from cachecd.listing.progress import Progress
from cachecd.relisting import Holds
from cachecd.listing.selection import selection_of
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
    """Lists the source until that has succeeded once in this run; the index on disk serves till then.
    Then again every `relist` seconds, or if that takes longer than half of them, after as long a pause.

    Feeds Listed whenever more may be walked, ListingStopped after every failure, and Relisted when a
    listing of what was known has come to its end. `holds` says which units are held, `awaits` why none may
    be walked before the end. `judges`: a source whose first listing shows that most of its objects are
    rewritten is refused, as another store than before.
    """
    if awaits and not index.complete:
        _log.info("sampling waits for the end of the listing", dataset=name, why=awaits)
    await _Kept(name, config, lister, index, room, holds, progress, feed).keep(judges)


@dataclass(slots=True)
class _Kept:
    """A source that is kept listed."""

    name: str
    config: DatasetConfig
    lister: Lister
    index: Index
    room: DatasetRoom
    holds: Holds
    progress: Progress
    feed: Callable[[Event], None]
    doubts: bool = False  # said, in this listing

    async def keep(self, judges: bool) -> None:
        relist, progress, index = self.config.relist, self.progress, self.index
        again = False
        while True:
            self.doubts = False
            progress.begin(time.monotonic())
            listing = Listing(
                self.config.source,
                index,
                self.room,
                self._listed,
                self.holds,
                progress,
                more_to_come=relist is not None,
                takes=selection_of(self.config),
                judges=judges and not again,
                doubted=self._doubted,
            )
            await self._until_listed(listing, relist if again else None)
            progress.end(time.monotonic())
            took = round(progress.took, 1)
            _log.info("source listed", dataset=self.name, units=len(index), took_s=took)
            if listing.left_out:
                progress.failed = listing.left_out
                _log.warning("source not listed", dataset=self.name, why=listing.left_out)
            if listing.gone is not None:
                gone, back = listing.gone
                if len(gone) or len(back):
                    _log.info("source changed", dataset=self.name, gone=len(gone), back=len(back))
                self.feed(Relisted(self.name, gone, back))
            self._listed(fresh=True)
            if relist is None:
                return
            again = True
            await asyncio.sleep(max(relist - progress.took, progress.took))

    def _listed(self, fresh: bool = False) -> None:
        self.feed(Listed(self.name, self.index.complete, fresh))

    def _doubted(self, why: str) -> None:
        if self.doubts:
            return
        self.doubts = True
        why = f"{why}: nothing is fetched until the listing is at its end, and tells"
        _log.warning("source in doubt", dataset=self.name, why=why)
        self.feed(ListingStopped(self.name, why, doubted=True))

    async def _until_listed(self, listing: Listing, patient: float | None) -> None:
        """`patient`: what is known was listed in this run already, and failures may wait so long."""
        failures, index, lister, source = 0, self.index, self.lister, self.config.source
        while True:
            length = len(index)
            try:
                await listing.go_on(partial(lister.units, source), partial(lister.sweep, source))
            except Exception as error:
                if not isinstance(error, (SourceError, DiskError, NoRoomError, ConfigError)):
                    # Whatever a store's library raises is that store's trouble, and may pass.
                    _log.exception("listing failed otherwise than thought", dataset=self.name)
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
                    dataset=self.name,
                    why=str(error),
                    units=len(index),
                    again_in_s=round(pause, 1),
                )
                self.progress.failed = str(error)
                self.feed(ListingStopped(self.name, str(error), stuck, down, refused))
                await asyncio.sleep(pause)
            else:
                return
