"""The outcomes of shards, which mean something for later ones in the order of the shards' numbers. Pure.

An outcome has its effect when it is *applied*, in that order, however the shards themselves finish.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cachecd.model import Outcome, UnitSlice
from cachecd.parts import part_of, slices_of


@dataclass(frozen=True, slots=True)
class Yield:
    """What a shard's units of one source came to: bytes of the units it is made of, the bytes and records
    that they became, and the bytes of those that were set aside."""

    bytes_in: int = 0
    bytes_out: int = 0
    records: int = 0
    bytes_aside: int = 0


@dataclass(frozen=True, slots=True)
class Effect:
    """What an outcome means for later shards: what did not fit, and the `yields` of the sources."""

    remainder: tuple[UnitSlice, ...] = ()
    yields: tuple[Yield, ...] = ()


# What a record takes of a sidecar. Of several sources that is all that counts: its text names units by
# their numbers, which depend on how the listings fell among each other.
_OF_SIDECAR = 20
# Of each unit that a shard holds: how many records, and their bytes.
Made = Mapping[int, tuple[int, int]]


def yields_of(
    assigned: Sequence[UnitSlice],
    outcome: Outcome,
    made: Made,
    sources: Mapping[int, int],
    count: int,
) -> tuple[Yield, ...]:
    """Of each of `count` sources what a shard's units came to; `sources` says of which each unit is. Of
    parts that end before their unit does it is not known how many bytes they are."""
    aside = {each.unit for each in outcome.set_aside}
    sizes, asides, data, records = ([0] * count for _ in range(4))
    for unit in assigned:
        sizes[sources[unit.unit]] += max(unit.size - unit.offset, 0)
        if unit.unit in aside:
            sizes[sources[unit.unit]] -= unit.size
            asides[sources[unit.unit]] += unit.size
    for unit in outcome.remainder:
        sizes[sources[unit.unit]] -= max(unit.size - unit.offset, 0)
    for number, (its_records, its_bytes) in made.items():
        records[sources[number]] += its_records
        data[sources[number]] += its_bytes
    if count == 1:
        bytes_out, records = [outcome.data_bytes + outcome.sidecar_bytes], [0]
    else:
        bytes_out = [its + _OF_SIDECAR * some for its, some in zip(data, records, strict=True)]
    told = [
        Yield(max(size, 0), its, some, bad)
        for size, its, some, bad in zip(sizes, bytes_out, records, asides, strict=True)
    ]
    for unit in assigned:
        if unit.stop:
            source = sources[unit.unit]
            told[source] = Yield(0, 0, records[source], asides[source])
    return tuple(told)


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

    def records_of(self, source: int) -> int:
        """Of a source, in shards whose outcomes wait."""
        return sum(e.yields[source].records for e in self.waiting.values() if e.yields)

    def take_up_to(self, number: int) -> Iterator[tuple[int, Effect]]:
        """Applies them, as far as they are there without a gap."""
        while self.applied < number and self.knows_next:
            if end := self.unused.pop(self.applied + 1, 0):
                self.applied = min(end - 1, number)
                self.skip(self.applied + 1, end)
            else:
                self.applied += 1
                yield self.applied, self.waiting.pop(self.applied)

    def drop(self, begun: Container[tuple[int, int]]) -> list[UnitSlice]:
        """Forgets the slices that begin with these (unit, ordinal), and returns them."""
        done = [u for u in self.slices() if (u.unit, u.ordinal) in begun]
        for number, effect in self.waiting.items():
            rest = tuple(u for u in effect.remainder if u not in done)
            self.waiting[number] = replace(effect, remainder=rest)
        return done

    # --- across restarts

    def to_json(self) -> dict[str, Any]:
        """All of it. Of one source, what versions had that knew no other."""
        told = {
            "applied": self.applied,
            "outcomes": {str(n): _stored(effect) for n, effect in self.waiting.items()},
        }
        return told | ({"unused": list(self.unused.items())} if self.unused else {})

    def restore(self, saved: dict[str, Any], unit: Callable[[int], UnitSlice]) -> None:
        """Continues from what `to_json` gave; `unit` is the listing's."""
        self.applied = saved["applied"]
        self.unused = dict(saved.get("unused", ()))
        for number, (data, sidecar, fetched, remainder, *yields) in saved["outcomes"].items():
            rest: Sequence[UnitSlice] = slices_of(remainder, unit)
            found = [Yield(*each) for each in (yields[0] if yields else ())]
            if not yields and (fetched or data or sidecar):  # else nothing came, of however many
                found = [Yield(fetched, data + sidecar)]
            self.waiting[int(number)] = Effect(tuple(rest), tuple(found))


def _stored(effect: Effect) -> list[Any]:
    rest = [part_of(u) for u in effect.remainder]
    yields = effect.yields or (Yield(),)
    if len(yields) == 1:
        return [yields[0].bytes_out, 0, yields[0].bytes_in, rest]
    told = [[y.bytes_in, y.bytes_out, y.records, y.bytes_aside] for y in yields]
    return [0, 0, 0, rest, told]
