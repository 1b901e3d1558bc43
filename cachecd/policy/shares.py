"""Shares: how the datasets divide the cache's limit. A formula of current figures; pure.

No account is kept: the same figures always give the same shares. All figures are allocated bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A dataset can rotate with four footprints: one live, one retired and leased, one being written, and
# one kept back to make a damaged shard again.
LEAST_FOOTPRINTS = 4
# A dataset may have this many footprints besides one for each stream beyond its listed size.
_SPARE_FOOTPRINTS = 3


@dataclass(frozen=True, slots=True)
class Claim:
    """What one dataset claims of the limit.

    `first`: `grow.first`. `footprint`: the most that one shard occupies. `need`: the most that the
    dataset can use, infinite while that is unknown. `limit`: the dataset's own limit.
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
    """The most that a dataset can use. `held`: live, retired and reserved bytes. `listed`: the bytes that
    all listed units would occupy at today's bytes per unit, infinite while that is unknown. A whole dataset
    needs room for one shard made again and one supplement."""
    spare = 2 if whole else streams + _SPARE_FOOTPRINTS
    return (occupied if whole else 1.1 * listed) + spare * footprint


def first_bytes(first: int, share: int) -> int:
    """`grow.first` counts at most half of the share."""
    return min(first, share // 2)


def shares(limit: int, claims: Sequence[Claim]) -> dict[str, int]:
    """The share of each dataset. The shares of datasets that are not held at their least sum to at most
    `limit`.

    A pinned dataset takes as much as it needs. Until all pinned datasets are whole, the others stay at
    `first`, of which at most half of an equal part counts. A dataset with a limit takes it. The other
    datasets divide the rest equally, and what one of them cannot use is divided among the others.
    """
    pinned = sorted((c for c in claims if c.pinned), key=lambda c: (c.most, c.name))
    plain = [claim for claim in claims if not claim.pinned]
    filling = any(not claim.whole for claim in pinned)
    left: dict[str, int] = {}  # what pinned datasets leave the others
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
    """Equal parts of `rest`, but at most `most` for each claim; the others get what one cannot use."""
    divided: dict[str, int] = {}
    waiting = sorted(claims, key=lambda claim: (claim.most, claim.name))
    for count, claim in zip(range(len(waiting), 0, -1), waiting, strict=True):
        divided[claim.name] = int(min(claim.most, max(rest, 0) // count))
        rest -= divided[claim.name]
    return divided
