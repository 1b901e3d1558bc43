"""Times an epoch of the demo: passes over the leased set for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Batch = TypeVar("Batch")


class PassTimer:
    """Times the reading of one epoch.

    `batches`: the number of batches. `seconds`: the running time. `waited`: the seconds in which the loop
    waited for a batch.
    """

    def __init__(self, budget: float) -> None:
        """`budget`: seconds after which no batch begins, except in the first pass."""
        self._budget = budget
        self.batches = 0
        self.seconds = 0.0
        self.waited = 0.0

    def over(self, open_pass: Callable[[int], Iterable[Batch]]) -> Iterator[Batch]:
        """Yields the batches of `open_pass(0)`, `open_pass(1)` and so on: the whole first pass, then as
        many batches as the budget allows."""
        began = time.monotonic()
        number = 0
        while True:
            requested = time.monotonic()
            for batch in open_pass(number):
                now = time.monotonic()
                self.waited += now - requested
                if number and now - began > self._budget:
                    self.seconds = now - began
                    return
                self.batches += 1
                yield batch
                requested = time.monotonic()
            number += 1
