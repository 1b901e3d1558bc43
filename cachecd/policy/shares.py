"""The formula that divides the limit into the shares of the datasets. Pure.

Shares depend only on current figures, not on history. All figures are allocated bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A dataset needs four footprints to rotate: for a live shard, for a retired shard that a lease names, for
# the shard that is being written, and for the next version of a damaged shard.
LEAST_FOOTPRINTS = 4
# Beyond its listed size, a dataset may have one footprint for each stream, plus this number of
# footprints.
_SPARE_FOOTPRINTS = 3


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of one dataset to a part of the limit.

    `first`: `grow.first`. `footprint`: the maximum size of one shard. `need`: the maximum that the
    dataset can use, infinite while it is unknown. `limit`: the dataset's own limit.
    """

    name: str
    first: int
    footprint: int
    need: float = math.inf
    limit: int | None = None
    pinned: bool = False
    whole: bool = False

    @property
    def least(self) -> int:
        """The smallest share with which the dataset can rotate."""
        return LEAST_FOOTPRINTS * self.footprint

    @property
    def most(self) -> float:
        """The largest share that the dataset can use."""
        return self.need if self.limit is None else min(self.need, self.limit)


def need(occupied: int, whole: bool, listed: float, footprint: int, streams: int) -> float:
    """Returns the maximum of bytes that a dataset can use. `occupied`: live, retired and reserved bytes.
    `listed`: the estimated bytes of the shards of all listed units, infinite while it is unknown. A whole
    dataset needs room for the next version of one shard and for one supplement."""
    spare = 2 if whole else streams + _SPARE_FOOTPRINTS
    return (occupied if whole else 1.1 * listed) + spare * footprint


def first_bytes(first: int, share: int) -> int:
    """Returns the part of `grow.first` that counts: at most half of the share."""
    return min(first, share // 2)


def shares(limit: int, claims: Sequence[Claim]) -> dict[str, int]:
    """Returns the share of each dataset. The shares above their `least` add up to at most `limit`.

    A pinned dataset gets as much as it needs. Until all pinned datasets are whole, the other datasets get
    `first`, but at most half of an equal part. A dataset with a limit gets this limit. The other datasets
    divide the rest equally. If a dataset cannot use all of its part, the others divide the rest.
    """
    pinned = sorted((c for c in claims if c.pinned), key=lambda c: (c.most, c.name))
    plain = [claim for claim in claims if not claim.pinned]
    filling = any(not claim.whole for claim in pinned)
    left: dict[str, int] = {}  # that pinned datasets leave to the others
    for claim in plain:
        left[claim.name] = claim.least
        if filling:
            first = max(min(claim.first, limit // len(claims) // 2), claim.least)
            left[claim.name] = first if claim.limit is None else min(first, claim.limit)
    divided: dict[str, int] = {}
    rest = limit - sum(left.values())
    for claim in pinned:
        divided[claim.name] = int(min(claim.most, max(rest, 0)))
        rest -= divided[claim.name]
    if filling:
        return divided | left
    limited = [claim for claim in plain if claim.limit is not None]
    others = [claim for claim in plain if claim.limit is None]
    divided |= _divide(rest + sum(claim.least for claim in limited), limited)
    rest = limit - sum(divided.values())
    return divided | _divide(rest, others)


def _divide(rest: float, claims: Iterable[Claim]) -> dict[str, int]:
    """Divides `rest` equally. A claim gets at most its `most`; the other claims get the difference."""
    divided: dict[str, int] = {}
    waiting = sorted(claims, key=lambda claim: (claim.most, claim.name))
    for count, claim in zip(range(len(waiting), 0, -1), waiting, strict=True):
        divided[claim.name] = int(min(claim.most, max(rest, 0) // count))
        rest -= divided[claim.name]
    return divided
