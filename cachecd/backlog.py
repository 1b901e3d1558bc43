"""What the outcomes of shards mean for later ones: units left to do, and the ratio. Pure.

An outcome has its effect when it is *applied*, in the order of the shards' numbers, however the
shards themselves finish.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.model import Outcome, UnitSlice
from cachecd.parts import part_of, slices_of

_RECORD_OVERHEAD = 36  # framing and sidecar
# Framing, sidecar, key and label of a small object; corrected by the ratio later.
_UNIT_OVERHEAD = 128
NOTHING = Outcome(0, 0, 0, 0, 0, 0.0)


class Backlog:
    """`next_up` are the slices that come next, first come, first served; `applied`: outcomes up to
    this number have had their effect."""

    def __init__(self) -> None:
        self.applied = 0
        self.next_up: deque[UnitSlice] = deque()
        self._finished: dict[int, Outcome] = {}  # not yet applied
        self._bytes_in = 0
        self._bytes_out = 0

    def slices(self) -> list[UnitSlice]:
        """All that did not fit into shards that are done or was lost with one, and is in no other yet."""
        return [*self.next_up, *(u for o in self._finished.values() for u in o.remainder)]

    def append(self, units: Iterable[UnitSlice]) -> None:
        """These come after all that have been applied."""
        self.next_up.extend(units)

    # --- outcomes

    def finish(self, number: int, outcome: Outcome) -> None:
        """Shard `number` has this outcome; its `fetched_bytes` are those of the units that it is made
        of."""
        self._finished[number] = outcome

    def finished(self, number: int) -> bool:
        """Whether this outcome waits to be applied."""
        return number in self._finished

    def apply_up_to(self, number: int) -> None:
        """As far as the outcomes are there without a gap."""
        while self.applied < number and self.applied + 1 in self._finished:
            self.applied += 1
            outcome = self._finished.pop(self.applied)
            self.next_up.extend(outcome.remainder)
            self._bytes_in += outcome.fetched_bytes
            self._bytes_out += outcome.data_bytes + outcome.sidecar_bytes

    def skip_to(self, number: int) -> None:
        """Nothing is known of the outcomes up to this number."""
        self.applied = number

    def drop(self, begun: Container[tuple[int, int]]) -> list[UnitSlice]:
        """Forgets the slices that begin with these (unit, ordinal), and returns them."""
        done = [u for u in self.slices() if (u.unit, u.ordinal) in begun]
        self.next_up = deque(u for u in self.next_up if u not in done)
        for number, outcome in self._finished.items():
            rest = tuple(u for u in outcome.remainder if u not in done)
            self._finished[number] = replace(outcome, remainder=rest)
        return done

    # --- the ratio

    def estimate(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """What units of these sizes take as records, by the ratio seen so far."""
        if self._bytes_in and self._bytes_out:
            scaled = (sizes * (self._bytes_out / self._bytes_in)).astype(np.int64)
            return np.maximum(scaled, _RECORD_OVERHEAD)
        return sizes + _UNIT_OVERHEAD

    def estimate_of(self, unit: UnitSlice) -> int:
        """What this slice takes."""
        return int(self.estimate(np.array([max(unit.size - unit.offset, 0)], np.int64))[0])

    def estimate_all(self, total: int, units: int) -> int:
        """What so many units of `total` bytes take."""
        if self._bytes_in and self._bytes_out:
            return int(total * (self._bytes_out / self._bytes_in))
        return total + _UNIT_OVERHEAD * units

    # --- across restarts

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "remainder": [part_of(u) for u in self.next_up],
            "bytes_in": self._bytes_in,
            "bytes_out": self._bytes_out,
            "applied": self.applied,
            "outcomes": {
                str(n): [
                    o.data_bytes, o.sidecar_bytes, o.fetched_bytes, [part_of(u) for u in o.remainder]
                ]
                for n, o in self._finished.items()
            },
        }  # fmt: skip

    def restore(self, saved: dict[str, Any], unit: Callable[[int], UnitSlice]) -> None:
        """Continues from what `to_json` gave; `unit` is the listing's."""
        self.applied = saved["applied"]
        self._bytes_in, self._bytes_out = saved["bytes_in"], saved["bytes_out"]
        self.next_up.extend(slices_of(saved["remainder"], unit))
        for number, (data, sidecar, fetched, remainder) in saved["outcomes"].items():
            rest: Sequence[UnitSlice] = slices_of(remainder, unit)
            self._finished[int(number)] = Outcome(0, data, sidecar, 0, fetched, 0.0, tuple(rest))
