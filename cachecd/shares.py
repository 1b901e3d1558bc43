"""How many records each of several sources has given, and whose turn it is. Pure.

Each source has a *lead*: its records so far by its weight. Whoever leads least comes next, as flows
share a link in fair queueing; so the records follow the weights, and the sources are mixed within a shard.
Records of shards that are not applied yet are estimated. Who had nothing to give is owed nothing: it
begins again with the least lead of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class _Planned:
    """Of one shard that is not applied yet: the records expected of each source, and the sources of which
    a unit is expected to be left over."""

    records: list[float]
    cut: list[int]


class Shares:
    """Of the sources of one plan, by their places."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = list(weights)
        self._given = [0.0] * len(self._weights)
        self._planned: dict[int, _Planned] = {}
        self._known: set[int] = set()
        self._idle: set[int] = set()

    def leads(self) -> list[float]:
        """Each source's lead."""
        planned = [of.records for _, of in sorted(self._planned.items())]
        leads = [
            (given + sum(records[source] for records in planned)) / self._weights[source]
            for source, given in enumerate(self._given)
        ]
        others = [lead for source, lead in enumerate(leads) if source not in self._idle]
        for source in self._idle if others else ():
            leads[source] = max(leads[source], min(others))
        return leads

    def weight(self, source: int) -> float:
        return self._weights[source]

    def plan(
        self, number: int, records: Sequence[float], cut: Iterable[int], idle: Iterable[int]
    ) -> None:
        """Shard `number` is expected to have so many records of each, and leaves something of those that
        are `cut`; those that were `idle` had nothing to give, or not enough."""
        self._settle()
        self._planned[number] = _Planned(list(records), sorted(cut))
        self._idle = set(idle)

    def _settle(self) -> None:
        """Who was idle is owed nothing."""
        leads, idle = self.leads(), self._idle
        self._idle = set()
        behind = self.leads()
        for source in idle:
            self._given[source] += (leads[source] - behind[source]) * self._weights[source]

    @property
    def unsure(self) -> bool:
        """Whether what others have given is not known of who was idle: the first of them is awaited."""
        return bool(self._idle) and any(map(self.awaits_first, range(len(self._weights))))

    def awaits_first(self, source: int) -> bool:
        """Whether a shard that is not applied yet is the first to have records of it."""
        coming = any(planned.records[source] > 0 for planned in self._planned.values())
        return coming and source not in self._known

    def expects_rest(self, source: int) -> bool:
        """Whether one of them will leave something over of it."""
        return any(source in planned.cut for planned in self._planned.values())

    def apply(self, number: int, records: Sequence[float]) -> None:
        """It has had so many."""
        if (planned := self._planned.pop(number, None)) is not None:
            self._known.update(s for s, expected in enumerate(planned.records) if expected > 0)
        for source, count in enumerate(records):
            self._given[source] += count

    def forget(self, number: int) -> None:
        """It will never be made."""
        self._planned.pop(number, None)

    def reweigh(self, weights: Sequence[float]) -> None:
        """From now on the weights are these; what was given by the old ones is not made up for."""
        if list(weights) == self._weights:
            return
        self._settle()
        least = min(self.leads())
        self._given = [
            given - least * weight for given, weight in zip(self._given, self._weights, strict=True)
        ]
        self._weights = list(weights)

    # --- across restarts

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "weights": self._weights,
            "given": self._given,
            "known": sorted(self._known),
            "idle": sorted(self._idle),
            "planned": {str(n): [p.records, p.cut] for n, p in self._planned.items()},
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Continues from what `to_json` gave, with the weights of now."""
        weights, self._weights = self._weights, list(saved["weights"])
        self._given, self._known = list(saved["given"]), set(saved["known"])
        self._idle = set(saved["idle"])
        self._planned = {int(n): _Planned(*planned) for n, planned in saved["planned"].items()}
        self.reweigh(weights)
