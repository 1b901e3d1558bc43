"""How many records of each of several datasets an epoch reads, and which. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cachecd_client.sweep import Numbers, Stage, Sweep

# Slices that an epoch may have of a dataset, 24 bytes each. A small dataset that is read a thousand times
# makes a thousand stages: of others they have some files, whole, where little of each would be more slices.
_MOST_SLICES = 1 << 20

# Of the shuffle window: what is kept whole of datasets that are small, and what comes at a time of the
# others. Two stages are in memory, the one that is read and the next.
_KEPT = _COMING = 0.25


class Share(NamedTuple):
    """A dataset's set, as Sweep takes it, and its share of the records, 0..1."""

    name: str
    weight: float
    files: Numbers
    records: Numbers
    size: int  # bytes of all files


@dataclass(frozen=True)
class Mix:
    """A way through several datasets at once, of each as Sweep has it, by weights.

    `owed`: how many records each dataset is behind its share of all that were read; less than one, but
    where an epoch had not one record for each.
    """

    sweeps: Mapping[str, Sweep] = field(default_factory=dict)
    owed: Mapping[str, float] = field(default_factory=dict)

    def take(
        self, shares: Sequence[Share], wanted: int, window: int | None = None, *, seed: int = 0
    ) -> tuple[list[Stage], Mix]:
        """Slices of `wanted` records in stages, and where the way is after them.

        The files are numbered from the first share's first one on. Each stage has of each dataset its
        share; a new one begins where a dataset has been read to the end of a sweep, or in this epoch once,
        so that no record of it comes again before all others have come. If the sets have more bytes than
        `window`, stages are so small that two fit, and of large datasets they have whole files. The shares'
        weights are 1 in all; none but those of 0 are without records.
        """
        quotas, owed = self._quotas([share for share in shares if share.weight], wanted)
        walks = [
            _Walk(share, self.sweeps.get(share.name, Sweep(seed=seed)), quotas[share.name], first)
            for share, first in zip(shares, _starts(shares), strict=True)
            if quotas.get(share.name)
        ]
        cuts = {1.0, *(cut for walk in walks for cut in walk.cuts())}
        if window is not None and sum(share.size for share in shares) > window:
            cuts.update(_rounds(walks, window))
        ends = sorted(cuts)
        stages = [np.concatenate([walk.to(end, len(ends)) for walk in walks]) for end in ends]
        sweeps = {**self.sweeps, **{walk.share.name: walk.sweep for walk in walks}}
        return [stage for stage in stages if len(stage)], Mix(sweeps, {**self.owed, **owed})

    def state(self) -> dict[str, Any]:
        """It as plain values, for `of_state`."""
        sweeps = {name: sweep.state() for name, sweep in sorted(self.sweeps.items())}
        return {"sweeps": sweeps, "owed": dict(sorted(self.owed.items()))}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Mix:
        """ValueError, or another error that means it, for what is no state."""
        sweeps = {str(name): Sweep.of_state(sweep) for name, sweep in state["sweeps"].items()}
        return cls(sweeps, {str(name): float(owed) for name, owed in state["owed"].items()})

    def _quotas(
        self, shares: Sequence[Share], wanted: int
    ) -> tuple[dict[str, int], dict[str, float]]:
        """Of each dataset so many records, `wanted` in all, and what each is owed then.

        By the largest remainders; and nothing twice of a dataset that has almost as many, for a record.
        """
        due = [self.owed.get(share.name, 0.0) + share.weight * wanted for share in shares]
        quotas = [max(0, math.floor(one)) for one in due]

        def behind(place: int) -> tuple[bool, float]:
            whole = quotas[place] == int(shares[place].records.sum())
            return not whole, due[place] - quotas[place]

        places = range(len(shares))
        while (missing := wanted - sum(quotas)) > 0:
            for place in sorted(places, key=behind, reverse=True)[:missing]:
                quotas[place] += 1
        while sum(quotas) > wanted:
            ahead = min((p for p in places if quotas[p]), key=lambda p: due[p] - quotas[p])
            quotas[ahead] -= 1
        owed = {share.name: due[p] - quotas[p] for p, share in enumerate(shares)}
        return {share.name: quotas[p] for p, share in enumerate(shares)}, owed


def length(sets: Sequence[tuple[int, float]]) -> int:
    """Of an epoch in which the one that is used up first is read once, of sets of so many records and such
    shares."""
    # A weight is rounded, and 700 / 0.7 is not to be 999.
    return math.floor(min(records / weight for records, weight in sets) + 1e-6)


class _Walk:
    """One dataset's way through an epoch, of which it has `quota` records."""

    def __init__(self, share: Share, sweep: Sweep, quota: int, first: int) -> None:
        """`first`: the number of its first file among all."""
        self.share = share
        self.sweep = sweep
        self.by_files = False  # it is too large for little of each to be read
        self._quota = quota
        self._first = first
        self._begun = np.minimum(sweep.read_of(share.files), share.records)
        self.records = int(share.records.sum())
        self._rest = self.records - int(self._begun.sum())
        self._taken = 0

    @property
    def bytes(self) -> float:
        """Read in the epoch, at most all."""
        return self.share.size * min(1.0, self._quota / self.records)

    def cuts(self) -> Iterator[float]:
        """Where a stage of the epoch has to end, 0..1.

        What was not read before the epoch comes first, and of the sweep after it what was: so these are
        all the records; then the same again.
        """
        for whole in range(0, self._quota, self.records):
            for place in (whole, whole + self._rest):
                if 0 < place < self._quota:
                    yield place / self._quota

    def to(self, end: float, stages: int) -> Stage:
        """The slices from where it is to that share of the epoch."""
        wanted = round(end * self._quota) - self._taken
        if not wanted:
            return np.zeros((0, 3), np.uint64)
        again = self._taken % self.records >= self._rest  # in this epoch nothing of it was read yet
        by_files = self.by_files or stages * len(self.share.files) > _MOST_SLICES
        stage, self.sweep = self.sweep.stage(
            self.share.files,
            self.share.records,
            wanted,
            whole_files=by_files,
            within=self._begun if again else None,
        )
        self._taken += wanted
        stage[:, 0] += np.uint64(self._first)
        return stage


def _starts(shares: Sequence[Share]) -> list[int]:
    """The number of each share's first file."""
    return [sum(len(share.files) for share in shares[:place]) for place in range(len(shares))]


def _rounds(walks: Sequence[_Walk], window: int) -> Iterator[float]:
    """Where stages end for two to fit the window, and which datasets come in whole files."""
    kept = 0
    for walk in sorted(walks, key=lambda walk: walk.share.size):
        kept += walk.share.size
        walk.by_files = kept > _KEPT * window
    coming = sum(walk.bytes for walk in walks if walk.by_files)
    rounds = math.ceil(coming / (_COMING * window))
    yield from (number / rounds for number in range(1, rounds))
