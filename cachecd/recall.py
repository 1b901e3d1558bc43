"""Shards that are made again as they were: a run resumes with them on a disk that has lost them. Pure.

They are assignments like those that were open at a crash: made under their own numbers, before anything
new. What they leave over, another one of them may begin with: then it must not be handed out again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cachecd.model import Assignment, Outcome, UnitSlice
from cachecd.plan import Plan

# Seconds for which nothing else is begun after the latest request of a run that recalls its set: what is
# begun meanwhile would take the numbers, and fetch what the run has had long ago.
PATIENCE = 30.0

Begin = tuple[int, int]  # unit, and the ordinal of the first record


@dataclass(slots=True)
class Recall:
    """What a dataset's plan has recalled: `numbers` are still to be made."""

    numbers: set[int] = field(default_factory=set)
    _highest: int = 0  # number of all of them; of later ones nothing is left that they begin with
    _begins: Counter[Begin] = field(default_factory=Counter)  # of parts that begin within a unit
    _last: int = 0
    _until: float = 0.0

    def awaited(self, last: int, now: float) -> None:
        """A run is about to recall shards up to this number, and others may be to earlier or later ones."""
        self._last = max(last, self._last if now < self._until else 0)
        self._until = now + PATIENCE

    def awaits(self, number: int, now: float) -> bool:
        """Whether this number is not to be given to a new shard yet."""
        return number <= self._last and now < self._until

    def take(self, plan: Plan, assignments: Iterable[Assignment]) -> None:
        """Has the plan go on behind these, which are open in it from now on: ascending, of new numbers."""
        begins: set[Begin] = set()
        for assignment in assignments:
            number, units = assignment.shard.number, assignment.units
            if number > plan.next_number:
                plan.overtake(number - 1)
            plan.open[number] = assignment
            plan.next_number = number + 1
            plan.hold([u.unit for u in units])
            self._add(number, units)
            begins |= {(u.unit, u.ordinal) for u in units}
        plan.drop(begins)

    def _add(self, number: int, units: Iterable[UnitSlice]) -> None:
        self.numbers.add(number)
        self._highest = max(self._highest, number)
        self._begins.update((u.unit, u.ordinal) for u in units if u.ordinal)

    def elsewhere(self, plan: Plan, number: int, outcome: Outcome) -> set[Begin]:
        """Of what shard `number` leaves over, the parts that another one begins with. To be asked before
        the plan is told that it is finished, once."""
        if number > self._highest:
            return set()
        mine = plan.open[number].units if number in self.numbers else ()
        own = {(u.unit, u.ordinal) for u in mine if u.ordinal}
        rest = [(u.unit, u.ordinal) for u in outcome.remainder]
        self._begins.subtract(own.intersection(rest))  # it was to begin with these, and has not
        several = plan.told([u for u, _ in rest], lambda walk, units: walk.count.shared(units))
        found = {
            begin
            for begin, others in zip(rest, several.tolist(), strict=True)
            if (self._begins[begin] > 0 if begin[1] else others)
        }
        self.numbers.discard(number)
        if not any(other <= self._highest for other in plan.open if other != number):
            self._begins.clear()
            self._highest = 0
        return found

    # --- across restarts

    def to_json(self) -> dict[str, Any]:
        """All that is not in the plan; empty if there is nothing."""
        told = {"numbers": sorted(self.numbers), "highest": self._highest}
        return {"recalled": told} if self._highest else {}

    def restore(self, saved: Mapping[str, Any], plan: Plan, others: Iterable[Begin]) -> None:
        """Goes on from what `to_json` gave; `others` are the parts of cut units that shards hold."""
        self._highest = saved["highest"]
        for number in plan.open.keys() & set(saved["numbers"]):
            self._add(number, plan.open[number].units)
        self._begins.update(begin for begin in others if begin[1])
