"""The outcomes of shards, which mean something for later ones in the order of the shards' numbers. Pure.

An outcome has its effect when it is *applied*, in that order, however the shards themselves finish.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cachecd.model import Outcome, UnitSlice
from cachecd.parts import part_of, slices_of


@dataclass(frozen=True, slots=True)
class Effect:
    """What later shards need of an outcome: the parts that did not fit, and the `bytes_out` of shards that
    `bytes_in` of the source became."""

    remainder: tuple[UnitSlice, ...] = ()
    bytes_in: int = 0
    bytes_out: int = 0


def effect_of(assigned: Sequence[UnitSlice], outcome: Outcome) -> Effect:
    """The effect of an outcome. A shard with a part that ends before its unit does says nothing of the
    ratio: nobody knows the bytes of such a part."""
    if any(unit.stop for unit in assigned):
        return Effect(outcome.remainder)
    aside = {each.unit for each in outcome.set_aside}
    size = sum(max(unit.size - unit.offset, 0) for unit in assigned)
    size -= sum(unit.size for unit in assigned if unit.unit in aside)
    size -= sum(max(unit.size - unit.offset, 0) for unit in outcome.remainder)
    return Effect(outcome.remainder, max(size, 0), outcome.data_bytes + outcome.sidecar_bytes)


@dataclass(slots=True)
class Backlog:
    """`applied`: outcomes up to this number have had their effect; `waiting`: others. `unused`: numbers of
    no shard, as ranges: where one begins, and the first number behind it."""

    applied: int = 0
    waiting: dict[int, Effect] = field(default_factory=dict)
    unused: dict[int, int] = field(default_factory=dict)

    @property
    def knows_next(self) -> bool:
        """Whether the outcome is known that is applied next."""
        return self.applied + 1 in self.waiting or self.applied + 1 in self.unused

    def slices(self) -> Iterator[UnitSlice]:
        """All that did not fit into shards whose outcomes wait."""
        for effect in self.waiting.values():
            yield from effect.remainder

    def finish(self, number: int, effect: Effect) -> None:
        """Shard `number` is done."""
        self.waiting[number] = effect

    def skip(self, begin: int, end: int) -> None:
        """The numbers from `begin` to before `end` are of no shard: however many, they cost nothing."""
        if begin < end:
            self.unused[begin] = end

    def take_up_to(self, number: int) -> Iterator[Effect]:
        """Applies them, as far as they are there without a gap."""
        while self.applied < number and self.knows_next:
            if end := self.unused.pop(self.applied + 1, 0):
                self.applied = min(end - 1, number)
                self.skip(self.applied + 1, end)
            else:
                self.applied += 1
                yield self.waiting.pop(self.applied)

    def drop(self, begun: Container[tuple[int, int]]) -> list[UnitSlice]:
        """Forgets the slices that begin with these (unit, ordinal), and returns them."""
        done = [u for u in self.slices() if (u.unit, u.ordinal) in begun]
        for number, effect in self.waiting.items():
            rest = tuple(u for u in effect.remainder if u not in done)
            self.waiting[number] = replace(effect, remainder=rest)
        return done

    # --- across restarts

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        outcomes = {
            str(number): [effect.bytes_in, effect.bytes_out, [part_of(u) for u in effect.remainder]]
            for number, effect in self.waiting.items()
        }
        state = {"applied": self.applied, "outcomes": outcomes}
        return state | ({"unused": list(self.unused.items())} if self.unused else {})

    def restore(self, saved: dict[str, Any], unit: Callable[[int], UnitSlice]) -> None:
        """Continues from what `to_json` gave; `unit` is the listing's."""
        self.applied = saved["applied"]
        self.unused = dict(saved.get("unused", ()))
        for number, (bytes_in, bytes_out, remainder) in saved["outcomes"].items():
            rest = tuple(slices_of(remainder, unit))
            self.waiting[int(number)] = Effect(rest, bytes_in, bytes_out)
