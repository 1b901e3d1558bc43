"""Whether most of what is looked at contradicts the dataset's schema, which its first record decided. Pure.

A few odd units are set aside, and the rest is good. Where most units are odd, the first record was the odd
one: to go on would set the good ones aside.
"""

from __future__ import annotations

from collections.abc import Iterable

from cachecd.model import MISFIT, SetAside

# Of fewer units nothing is concluded while others are still to come. With a quarter of all units odd, more
# than half of so many are in one of 20,000 datasets.
ENOUGH = 50


class Contradictions:
    """One dataset's: of the units that were looked at to their end, how many fit the schema and how many
    do not. Units set aside for another reason count as neither."""

    def __init__(self) -> None:
        self._fit = self._misfit = 0
        self._example: SetAside | None = None

    def found(self, asides: Iterable[SetAside], held: int, evicted: bool) -> None:
        """What a start found: `held` units fit. Where shards were `evicted`, nobody knows how many did, and
        what was set aside before this start says nothing."""
        self._fit += held
        if not evicted:
            self._set_aside(asides)

    def made(self, fit: int, asides: Iterable[SetAside]) -> None:
        """A shard was made: so many of its units fit and are in it to their end."""
        self._fit += fit
        self._set_aside(asides)

    def _set_aside(self, asides: Iterable[SetAside]) -> None:
        for aside in asides:
            if aside.reason.startswith(MISFIT):
                self._misfit += 1
                self._example = self._example or aside

    @property
    def suspected(self) -> bool:
        """Whether more than half of all units looked at contradict the schema, however few these are."""
        return self._misfit > self._fit

    @property
    def enough(self) -> bool:
        """Whether so many were looked at that others will hardly change that."""
        return self._fit + self._misfit >= ENOUGH

    def told(self, dataset: str) -> str:
        """What both schemas say, and what to do."""
        assert self._example is not None, "asked though nothing contradicts"
        looked_at = self._fit + self._misfit
        return (
            f"most records contradict the schema, which the first record of {dataset} decided: so do "
            f"{self._misfit} of the {looked_at} units looked at, such as {self._example.key!r}: "
            f"{self._example.reason.removeprefix(MISFIT).removeprefix(': ')}. Nothing more is fetched. "
            f"Have the transform make all records alike (decode_image: mode; resize), or leave the odd "
            f"ones out; then raise datasets.{dataset}.generation and restart"
        )
