"""By which weights datasets are mixed, epoch by epoch. Pure."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping

from cachecd_client.errors import CallerError

# Weights by dataset; or the same by the run's progress, 0..1.
Mixing = Mapping[str, float] | Callable[[float], Mapping[str, float]]


class Weights:
    """What a caller gave as weights, read anew whenever it is asked."""

    def __init__(self, given: Mixing) -> None:
        """CallerError for a mapping that cannot be."""
        self._given = given
        if not callable(given):
            self.at(0.0)

    def at(self, progress: float) -> dict[str, float]:
        """Each dataset's share of the records, in the caller's order: 0..1, and 1 in all.

        CallerError for weights that cannot be.
        """
        given = self._given(progress) if callable(self._given) else self._given
        if not isinstance(given, Mapping) or not given:
            raise CallerError(
                f"weights {reprlib.repr(given)}, expected a dict of dataset -> weight, of one dataset at "
                "least"
            )
        weights = {name: _weight(name, weight) for name, weight in given.items()}
        if not (most := max(weights.values())):
            raise CallerError(
                f"the weights of {', '.join(weights)} are all 0: nothing is to be read"
            )
        # By the largest first, as the sum of finite weights may not be.
        whole = math.fsum(weight / most for weight in weights.values())
        return {name: weight / most / whole for name, weight in weights.items()}


def _weight(name: str, weight: float) -> float:
    if not isinstance(name, str):
        raise CallerError(f"weights: {name!r} is no dataset's name")
    try:
        number = float(weight)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise CallerError(f"weight {weight!r} of dataset {name!r}, expected a number of 0 or more")
    return number
