"""One of several sources of an index, as if it were alone: its own keys, its units by their ordinals."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cachecd.index import Index
from cachecd.marks import Marks
from cachecd.model import ObjectInfo
from cachecd.segments import key_in
from cachecd.unittext import encoded

Numbers = NDArray[np.int64]


@dataclass(slots=True)
class _Shared:
    """By the sources of an index: whose turn it is, and where each one's listing is: its lanes, and the
    last key if all ascend."""

    index: Index
    turn: threading.Lock = field(default_factory=threading.Lock)
    positions: dict[str, list[str]] = field(default_factory=dict)


class SourceIndex:
    """What a listing needs of its index (see there), for one source; threads of several may use theirs
    at a time."""

    def __init__(self, shared: _Shared, place: int) -> None:
        """For `of` alone."""
        self.gone = Marks()
        self._shared = shared
        self._index = shared.index
        self._place = place
        sources, ordinals = self._index.segments.places(self._index.gone.numbers())
        self.gone.add(ordinals[sources == place])

    @staticmethod
    def of(index: Index) -> list[SourceIndex]:
        """Each source's part of it, in their order."""
        shared = _Shared(index)
        if index.frontier:
            shared.positions = json.loads(index.frontier)
        return [SourceIndex(shared, place) for place in range(len(index.segments.lengths))]

    def __len__(self) -> int:
        return self._index.segments.lengths[self._place]

    @property
    def complete(self) -> bool:
        return self._index.segments.marked(self._place) is not None

    @property
    def classes(self) -> tuple[str, ...]:
        """Where there are labels, the configuration names them."""
        return ()

    @property
    def ends(self) -> Sequence[int]:
        return self._index.ends_of(self._place)

    @property
    def frontier(self) -> str:
        return self._position[0]

    def last_key(self) -> str | None:
        return None if self.complete else self._position[1] or None

    @property
    def _position(self) -> list[str]:
        return self._shared.positions.get(str(self._place), ["", ""])

    def labelled(self, begin: int, end: int) -> Iterator[tuple[str, str]]:
        """Only to find classes in them."""
        return iter(())

    def cost(
        self, objects: Sequence[ObjectInfo], classes: Iterable[str] = (), frontier: str = ""
    ) -> int:
        new = [self._named(o) for o in objects]
        positions = json.dumps(self._shared.positions)
        return self._index.cost(new, classes, positions + frontier + (new[-1].key if new else ""))

    def look(self, objects: Sequence[ObjectInfo]) -> tuple[Numbers, NDArray[np.bool_]]:
        with self._shared.turn:
            numbers, rewritten = self._index.look([self._named(o) for o in objects])
        known = numbers >= 0
        numbers[known] = self.ordinals(numbers[known])
        return numbers, rewritten

    def append(
        self, objects: Sequence[ObjectInfo], frontier: str = "", *, again: bool = False
    ) -> int:
        if not objects:
            return 0
        with self._shared.turn:
            _, last = self._position
            keys = [last, *(o.key for o in objects)]
            # As `Index` has it: cut off between two units of an object, nothing goes on behind it.
            ascend = all(encoded(a) < encoded(b) for a, b in pairwise(keys))
            goes_on = ascend and (last or not len(self)) and not any(o.begin for o in objects)
            positions = self._shared.positions
            now = positions | {str(self._place): [frontier, keys[-1] if goes_on else ""]}
            added = self._index.append(
                [self._named(o) for o in objects], json.dumps(now), again=again
            )
            self._shared.positions = now
        return added

    def finish(self, classes: Iterable[str] = ()) -> None:
        with self._shared.turn:
            self._index.finish_source(self._place)

    def gone_cost(self, numbers: Numbers) -> int:
        return self._index.gone_cost(numbers)

    def toggle_gone(self, numbers: Numbers) -> None:
        with self._shared.turn:
            self._index.toggle_gone(self.numbers(numbers))
        self.gone.toggle(numbers)

    def _named(self, unit: ObjectInfo) -> ObjectInfo:
        return dataclasses.replace(unit, key=key_in(self._place, unit.key))

    # --- as the index numbers them

    def holds(self, held: Callable[[Sequence[int]], Iterable[int]]) -> Callable[..., list[int]]:
        """Which of these ordinals somebody holds, where `held` says it of numbers."""

        def mine(ordinals: Sequence[int]) -> list[int]:
            numbers = self.numbers(np.array(ordinals, np.int64))
            found: list[int] = self.ordinals(np.array([*held(numbers.tolist())], np.int64)).tolist()
            return found

        return mine

    def numbers(self, ordinals: Numbers) -> Numbers:
        """The numbers of units by their ordinals; ascending, if these are."""
        found = self._index.segments.numbers(self._place, ordinals.astype(np.uint64))
        return found.astype(np.int64)

    def ordinals(self, numbers: Numbers) -> Numbers:
        """The ordinals of units of this source."""
        return self._index.segments.places(numbers)[1]
