"""What a listing of a source that was listed before shows: what is new, rewritten, gone, or back.

It takes one bit a unit, and of the index, the blocks that its pages lie in.

The first listing of a run is also the judge of whether this is the store that was listed before. A store
of the same keys with other contents, which a mistyped endpoint leads to, must leave no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from cachecd.errors import RewrittenError
from cachecd.index import Index
from cachecd.marks import Marks
from cachecd.model import ObjectInfo

# Which of these units live shards hold something of, or somebody has in hand.
Holds = Callable[[Sequence[int]], Iterable[int]]


# With fewer objects than this the end of the listing comes at once.
_ENOUGH_TO_DOUBT = 1_000
# New and rewritten objects that wait for the end of the listing, of some 300 bytes each; if there are more,
# they are listed once more.
_MOST_WAITING = 50_000


class Relisting:
    """One listing, from its beginning to its end, over as many attempts as it takes.

    `judges`: no object gets a number before the end of the listing, and none at all if more than half of
    the objects that were listed before are rewritten. `unheard`: more are new or rewritten than can wait
    for that end, so that the source has to be listed once more, without a judge.
    """

    def __init__(self, index: Index, holds: Holds, judges: bool = False) -> None:
        self.unheard = False
        self._index = index
        self._holds = holds
        self._known = len(index)
        self._seen = Marks()
        self._judges = judges
        self._looked_at = self._rewritten = 0
        self._waiting: list[ObjectInfo] = []

    def new(
        self,
        objects: Sequence[ObjectInfo],
        numbers: NDArray[np.int64],
        rewritten: NDArray[np.bool_],
    ) -> list[ObjectInfo]:
        """Those that get a number now, or, before a judge, wait for it: they have none, or they were
        rewritten and nothing of the version that has one is cached. `numbers` and `rewritten` are what the
        index says of them."""
        self._looked_at += int((numbers >= 0).sum())
        self._rewritten += int(rewritten.sum())
        held = set(self._holds(numbers[rewritten].tolist())) if rewritten.any() else set()
        stale = rewritten & ~np.isin(numbers, list(held))
        self._seen.add(numbers[(numbers >= 0) & ~stale])
        new = [objects[place] for place in np.flatnonzero((numbers < 0) | stale).tolist()]
        if self._judges:
            self.unheard = self.unheard or len(self._waiting) + len(new) > _MOST_WAITING
            self._waiting = [] if self.unheard else [*self._waiting, *new]
            return []
        return _once(new)

    @property
    def doubt(self) -> str:
        """Why this may be another store than the one that was listed before, as far as the listing has
        come; "" if there is no reason."""
        if not self._judges or 2 * self._rewritten <= self._looked_at:
            return ""
        return (
            f"{self._rewritten} of the {self._looked_at} objects that were listed before and are listed "
            "now have another ETag or size"
        )

    @property
    def suspects(self) -> bool:
        """Whether there is doubt before the end of the listing."""
        return self._looked_at >= _ENOUGH_TO_DOUBT and bool(self.doubt)

    def judge(self) -> list[ObjectInfo]:
        """At the end of the listing: the objects that waited for it, and get a number now. RewrittenError
        if this is another store."""
        if self.doubt:
            raise RewrittenError(self.doubt)
        return _once(self._waiting)

    def end(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The units that are gone now and were not, and those that were and are back."""
        return self._index.gone.changes(self._seen, self._known)


def _once(objects: Iterable[ObjectInfo]) -> list[ObjectInfo]:
    """Each of them, though the store may have named it twice."""
    return list({(o.key, o.begin): o for o in objects}.values())
