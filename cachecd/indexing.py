"""Brings the index of a source up to date with the store, page by page.

What fails may be tried again, and goes on where it was in a store that lists its keys in their order, from
the beginning in others. What is listed can be sampled meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from cachecd.config import SourceConfig
from cachecd.errors import LimitTooSmallError, NoRoomError, RewrittenError, SourceUnreachableError
from cachecd.index import Index
from cachecd.indexroom import DatasetRoom
from cachecd.listpages import CircleError, Pages
from cachecd.model import ObjectInfo
from cachecd.listing.progress import Progress
from cachecd.relisting import Holds, Relisting
from cachecd.sampler.lanes import Lanes, OutOfOrderError
from cachecd.sampler.sources.files import class_names, label_of
from cachecd.sampler.sweep import Sweep
from cachecd.listing.selection import Takes
from cachecd.unittext import encoded

# A store whose contents change while it is listed may name an object twice, but not many.
_MOST_REPEATED = 10_000

_log = structlog.get_logger("cachecd.listing")
_Found = TypeVar("_Found")
Numbers = NDArray[np.int64]


class Listing:
    """One listing of a source, over as many attempts as it takes.

    New objects are appended to the index, none is renumbered, and `progressed` is called whenever
    the index has gained a block that may be walked. `gone` are, at its end, the units that are gone and
    those that are back, None if the source was not listed before. `left_out` is why objects that are
    new were not taken up: where `more_to_come`, there will be other listings, and none waits for room.
    Where it `judges` whether this is the store that was listed before, it calls `doubted` with the reason
    as soon as that is in doubt; the end of the listing tells.
    """

    def __init__(
        self,
        source: SourceConfig,
        index: Index,
        room: DatasetRoom,
        progressed: Callable[[], None],
        holds: Holds = lambda _: (),
        progress: Progress | None = None,
        more_to_come: bool = False,
        takes: Takes | None = None,
        judges: bool = False,
        doubted: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.index = index
        self.progress = progress or Progress()
        self.gone: tuple[Numbers, Numbers] | None = None
        self.left_out = ""
        self._source = source
        self._room = room
        self._may_leave_out = more_to_come and index.complete
        self._progressed = progressed
        self._holds = holds
        self._doubted = doubted
        self._relisting = Relisting(index, holds, judges) if index.complete else None
        self._begun = False
        self._lanes: Lanes | None = None  # where the listing is; None in a store of one lane
        self._after = ""  # there, everything up to this key is listed
        self._ordered = True
        self._classes: set[str] = set()
        self._takes = takes
        self._listed = 0  # objects that the store has named, and the dataset takes
        self._position = ""  # of the lanes, after what was appended last

    async def go_on(
        self,
        units: Callable[[str], Iterator[list[ObjectInfo]]],
        sweep: Callable[[Lanes], Sweep | None] = lambda _: None,
    ) -> None:
        """To the end, from where the last attempt came to. `units(key)` lists those behind a key,
        `sweep(lanes)` by several requests at a time, if the store can. What was listed stays, whatever
        is raised: SourceError, DiskError, or what the room refuses. After RewrittenError it begins anew."""
        await self._list_all(units, sweep)
        if self._relisting is not None:
            try:
                waited = self._relisting.judge()
            except RewrittenError:
                self._begin_anew(judges=True)
                raise
            if self._relisting.unheard:
                self._begin_anew(judges=False)
                await self._list_all(units, sweep)
            await self._take_up(waited, "", again=True)
        names = class_names(self._classes)
        await self._write(self.index.cost((), names), lambda: self.index.finish(names))
        if self._relisting is not None:
            await self._compare(self._relisting)

    def _begin_anew(self, judges: bool) -> None:
        self._relisting = Relisting(self.index, self._holds, judges)
        self._begun, self._ordered = False, True

    async def _list_all(
        self,
        units: Callable[[str], Iterator[list[ObjectInfo]]],
        sweep: Callable[[Lanes], Sweep | None],
    ) -> None:
        await _aside(self._begin)
        if not await self._swept(sweep):
            self._lanes = None
            pages = Pages(lambda: units(self._after))
            try:
                await self._take_all(pages.next)
            finally:
                pages.close()

    async def _compare(self, relisting: Relisting) -> None:
        if not self._listed and len(self.index):
            raise SourceUnreachableError(
                f"the source is empty, {len(self.index)} units were listed: not mounted? What is listed "
                "stays as it is until there is something"
            )
        gone, back = await _aside(relisting.end)
        if len(changed := np.sort(np.concatenate([gone, back]))):
            cost = self.index.gone_cost(changed)
            await self._write(cost, partial(self.index.toggle_gone, changed))
        self.gone = gone, back

    async def _swept(self, sweep: Callable[[Lanes], Sweep | None]) -> bool:
        """Whether that brought it to its end; False if it takes one lane."""
        lanes = self._lanes
        if lanes is None or (found := await _aside(partial(sweep, lanes))) is None:
            return False
        try:
            await self._take_all(lambda: None if (page := found.next()) is None else (page, ""))
        except OutOfOrderError as error:
            _log.warning("source listed by one request at a time", why=str(error))
            self._listed = 0
            return False
        except BaseException:
            # What was read and not appended is asked for again.
            self._lanes = Lanes()
            raise
        finally:
            found.close()
        return True

    async def _take_all(self, read: Callable[[], tuple[list[ObjectInfo], str] | None]) -> None:
        while (found := await _aside(read)) is not None:
            batch, position = found
            if not batch:
                continue
            taken, numbers, rewritten, ordered = await _aside(partial(self._look_at, batch))
            again = self._relisting is not None
            if self._relisting is not None:
                new = self._relisting.new(taken, numbers, rewritten)
                if self._relisting.suspects:
                    self._doubted(self._relisting.doubt)
            else:
                new = [o for o, n in zip(taken, numbers.tolist(), strict=True) if n < 0]
            await self._take_up(new, position, again)
            self._listed += len(taken)
            self.progress.objects = self._listed
            self._ordered = self._ordered and ordered
            self._after, self._position = batch[-1].key, position

    async def _take_up(self, new: list[ObjectInfo], position: str, again: bool) -> None:
        # Listed again, a source needs no room for what is known: a cache that is full has none.
        if not new or self.left_out:
            return
        ends, frontier = len(self.index.ends), "" if self.index.complete else position
        cost = self.index.cost(new, (), frontier)
        try:
            await self._write(cost, partial(self.index.append, new, frontier, again=again))
        except (NoRoomError, LimitTooSmallError) as error:
            if not self._may_leave_out:
                raise
            self.left_out = f"new objects are not taken up: {error}"
        if len(self.index.ends) > ends:
            self._progressed()

    async def _write(self, cost: int, write: Callable[[], object]) -> None:
        self._room.reserve(cost)
        try:
            await _aside(write)
        finally:
            self._room.settle()

    def _begin(self) -> None:
        """Finds out where the listing goes on, and which classes are known till there."""
        if self._begun and (self._ordered or self._lanes is not None):
            return
        index = self.index
        self._after, self._listed, self._classes = "", 0, set(index.classes)
        if not self._begun:
            label = self._source.label
            # Labels that a table tells are not in the keys: to know them all is to read all of it.
            by_key = label is None or label.pattern is not None
            self._position = "" if index.complete or not by_key else index.frontier
            if by_key and not self._position and (last := index.last_key()) is not None:
                self._after = last
            if self._position or self._after:
                self._listed = len(index)
                self._find_classes(index.labelled())
            if not self._after:
                self._lanes = _lanes_at(self._position)
        self._begun = True

    def _look_at(
        self, batch: list[ObjectInfo]
    ) -> tuple[list[ObjectInfo], Numbers, NDArray[np.bool_], bool]:
        """What the dataset takes of it, what the index says of that, and whether all its keys ascend
        from where the listing is."""
        taken = batch if self._takes is None else list(filter(self._takes, batch))
        numbers, rewritten = self.index.look(taken)
        listed, different = self._listed + len(taken), len(self.index) + int((numbers < 0).sum())
        if listed > different + _MOST_REPEATED:
            raise CircleError(
                f"the store has listed {listed} objects, of which only {different} differ: its "
                "listing goes round in circles"
            )
        self._find_classes((o.key, o.label) for o in batch)
        keys = [encoded(self._after)]
        keys += [encoded(o.key) for o in batch]
        ordered = all(a < b for a, b in pairwise(keys if self._after else keys[1:]))
        return taken, numbers, rewritten, ordered or self._lanes is not None

    def _find_classes(self, units: Iterable[tuple[str, str]]) -> None:
        """In keys, and the labels with which they are listed."""
        if self._source.awaits_classes:
            found = (label_of(self._source, key, label) for key, label in units)
            self._classes.update(name for name in found if name is not None)


def _lanes_at(position: str) -> Lanes:
    """As it was saved; what another release saved otherwise is listed from the beginning."""
    try:
        return Lanes()
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        _log.warning("source listed from its beginning", why=repr(error))
        return Lanes()


async def _aside(work: Callable[[], _Found]) -> _Found:
    """Does it in a thread that nobody waits for at the end: a store that hangs keeps no daemon from
    ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Found] = loop.create_future()

    def tell(found: _Found | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(found)  # type: ignore[arg-type]

    def run() -> None:
        found, failure = None, None
        try:
            found = work()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(tell, found, failure)

    threading.Thread(target=run, name="listing", daemon=True).start()
    return await done
