"""Getting the very set again that a run had: where it is, made again, or another one instead."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from cachecd_client.errors import SetGoneError
from cachecd_client.protocol import Missing, Recall, Reply, Request, Waiting
from cachecd_client.standing import Standing
from cachecd_client.waiting import Wait

log = logging.getLogger("cachecd")

# A daemon looks up each unit of a recipe while trainers wait: some thousand at a time.
_TEXT_AT_ONCE = 16 << 10


class Regaining:
    """One acquire of a run that resumes; `exact`: no other set than that of `standing` will do."""

    def __init__(self, standing: Standing, exact: bool) -> None:
        self._standing = standing
        self._exact = exact
        self._given_up = standing.over and not exact
        self._recalled = False
        self.same = False
        """Whether what was granted is the very set."""

    def fields(self) -> dict[str, Any]:
        """What the next Acquire says beside whose epoch it is."""
        standing = self._standing
        if not self._given_up:
            return {
                "generation": standing.generation,
                "shards": standing.shards,
                "fingerprint": standing.fingerprint,
            }
        return {
            "generation": standing.generation,
            "shards": standing.shards[-1:],
            "walk": standing.walk,
            "cursor": standing.cursor,
        }

    def missing(self, told: Missing, ask: Callable[[Request], Reply], wait: Wait) -> None:
        """The daemon has not got the set: has it made again, or gives it up.

        SetGoneError if that cannot be; AcquireTimeoutError.
        """
        standing = self._standing
        if not self._exact:
            log.warning(
                "%s: epoch %d begins anew with the set that there is now, as that of the state is gone: "
                "%s (resume='exact' has it fetched again)",
                standing.dataset, standing.epoch, told.reason,
            )  # fmt: skip
            self._given_up = True
        elif not told.shards:  # something else has to end first
            wait.pause(Waiting(told.id, 0, 0, 0.0, told.reason))
        else:
            if self._recalled:
                raise SetGoneError(
                    f"{standing.dataset}: the set of epoch {standing.epoch} was made again, and it is "
                    f"another one: {told.reason}"
                )
            self._recall(told, ask, wait)

    def granted(self, fingerprint: str) -> None:
        """This was; SetGoneError if it is not the set, and must be."""
        self.same = fingerprint == self._standing.fingerprint and not self._given_up
        if self._exact and not self.same:
            raise SetGoneError(
                f"{self._standing.dataset}: the daemon gave another set than that of the state: it is "
                "older than this client, and cannot resume; install the same release of both"
            )

    def _recall(self, told: Missing, ask: Callable[[Request], Reply], wait: Wait) -> None:
        standing = self._standing
        numbers = [n for first, last in told.shards for n in range(first, last + 1)]
        if unknown := [number for number in numbers if not standing.recipe_of(number)]:
            raise SetGoneError(
                f"{standing.dataset}: {told.reason}, and the state does not say how "
                f"{len(unknown)} of them were made (the first is shard {unknown[0]}): a run says so in its "
                "states if it was begun with resume='exact'; resume='continue' goes on with another set"
            )
        log.warning(
            "%s: %d of the %d shards of epoch %d are fetched again: %s",
            standing.dataset, len(numbers), standing.num_shards, standing.epoch, told.reason,
        )  # fmt: skip
        # All of the set: those that are there have to be the same, or records would be there twice.
        for recipes in _parts([recipe for recipe in standing.recipes if recipe]):
            while True:
                request = Recall(
                    uuid.uuid4().hex,
                    standing.dataset,
                    standing.generation,
                    standing.shards,
                    standing.num_bytes,
                    recipes,
                )
                match ask(request):
                    case Waiting() as waiting:
                        wait.pause(waiting)
                    case _:
                        break
        self._recalled = True


def _parts(recipes: list[str]) -> Iterator[list[str]]:
    """As many at a time as are not long together, and one at least."""
    part: list[str] = []
    for recipe in recipes:
        if part and sum(map(len, part)) + len(recipe) > _TEXT_AT_ONCE:
            yield part
            part = []
        part.append(recipe)
    if part:
        yield part
