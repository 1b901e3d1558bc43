"""How a set's records are divided into steps, and these into batches of the ranks. Pure.

The core divides likewise (`core/division.h`); here it is known before a file is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from cachecd_client.errors import CallerError
from cachecd_client.options import flag

#: What becomes of the records that do not fill a batch on every rank: they are left out; they make a
#: short batch; they make a batch that is filled up with rows that are no records.
Last = Literal["drop", "short", "pad"]


def last_of(drop_last: bool | None, pad_last: bool | None, default: bool) -> Last:
    """By these options, of which `drop_last` is `default` if nobody says. CallerError for both."""
    pads = pad_last is not None and flag("pad_last", pad_last)
    if drop_last is not None:
        drop_last = flag("drop_last", drop_last)
        if drop_last and pads:
            raise CallerError(
                "drop_last=True, pad_last=True: expected one of them; what is left out is not filled up"
            )
    if pads:
        return "pad"
    return "drop" if (default if drop_last is None else drop_last) else "short"


@dataclass(frozen=True)
class Division:
    """Rank r of `world` has of `records` the positions r, r + world, ...; every rank takes as many `steps`.

    `records` are those here, over all ranks that share them.
    """

    records: int
    batch_size: int
    world: int
    last: Last
    steps: int
    #: Whether every batch has `batch_size` rows, on every rank of every node.
    is_full: bool = True

    @classmethod
    def of(
        cls,
        records: int,
        batch_size: int,
        world: int,
        last: Last,
        least: int | None = None,
        most: int | None = None,
    ) -> Self:
        """Of one pass. `least` and `most`: records of the nodes that have fewest and most, if there are
        others.

        CallerError if there is no step, or if a step would have no record for some rank, anywhere.
        """
        if not records:
            raise CallerError(
                "the set has no records: its files are empty, so there is nothing to read"
            )
        least = records if least is None else min(least, records)
        most = records if most is None else max(most, records)
        step = world * batch_size
        steps = least // step if last == "drop" else -(-most // step)
        if not steps:
            raise CallerError(
                f"{least} records over {world} ranks make no batch of {batch_size}: choose a smaller "
                "batch_size, or drop_last=False"
            )
        if last == "short" and least // world < steps:
            raise CallerError(
                f"{least} records over {world} ranks, {steps} batches of at most {batch_size} on each: "
                "some rank would have no record for its last one; pad_last=True fills up with rows that "
                "`_valid` masks, drop_last=True leaves out what does not fill a batch"
            )
        is_full = last != "short" or least == most == steps * step
        return cls(records, batch_size, world, last, steps, is_full)

    @classmethod
    def whole(cls, steps: int, batch_size: int, world: int, last: Last) -> Self:
        """Into so many steps, all of them full."""
        return cls(steps * batch_size * world, batch_size, world, last, steps)

    def begin(self, batch: int, rank: int) -> int:
        """Records of the rank before its batch of this number; before `steps`, all that it is given."""
        positions = -((rank - self.records) // self.world)
        begin = min(batch * self.batch_size, positions)
        # One is left for each batch that follows.
        return min(begin, positions - (self.steps - batch)) if self.last == "short" else begin

    def rows(self, rank: int) -> NDArray[np.int64]:
        """How many records each batch of the rank has."""
        ends = np.arange(self.steps + 1, dtype=np.int64)
        positions = -((rank - self.records) // self.world)
        begins = np.minimum(ends * self.batch_size, positions)
        if self.last == "short":
            begins = np.minimum(begins, positions - (self.steps - ends))
        return np.diff(begins)
