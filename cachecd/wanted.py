"""A set of shards that a resumed run wants once more: what it asks for, and what it is told. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cachecd.model import Assignment, Ranges


@dataclass(frozen=True, slots=True)
class Wanted:
    """The set of a lease that there was: a run that resumes wants the very same.

    Without a `fingerprint` it does not, and then new shards have numbers behind these. Where nothing was
    sampled beyond `cursor`, of a walk of this name, the walk is to go on from there.
    """

    generation: str
    shards: Ranges
    fingerprint: str = ""
    walk: str = ""
    cursor: tuple[int, ...] = ()

    @property
    def last(self) -> int:
        """The highest number of its shards; 0 if it has none."""
        return self.shards[-1][1] if self.shards else 0


@dataclass(frozen=True, slots=True)
class ReplyMissing:
    """Tell the rank that these shards of the set that it wants are gone, or, with none, what else is so."""

    request: str
    shards: Ranges
    reason: str


@dataclass(frozen=True, slots=True)
class ShardsRecalled:
    """A run has these shards made again, of a set of `num_bytes` whose last is `last`; others may follow.

    They are of no number that was used, and of units as they are listed now. `request` is answered by one
    reply; `waiting`: why it is to be asked again, though this is taken.
    """

    request: str
    dataset: str
    assignments: tuple[Assignment, ...]
    num_bytes: int
    last: int
    waiting: str = ""
