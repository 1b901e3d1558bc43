"""Getting the very sets again that a run had: where they are, made again, or others instead."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from cachecd_client.errors import SetGoneError
from cachecd_client.protocol import Missing, Recall, Reply, Request, Waiting, numbers_of
from cachecd_client.standing import LeftSet, Standing
from cachecd_client.waiting import Wait

if TYPE_CHECKING:
    from cachecd_client.leased import LeasedSet

log = logging.getLogger("cachecd")

# A daemon looks up each unit of a recipe while trainers wait: some thousand at a time.
_TEXT_AT_ONCE = 16 << 10


@contextmanager
def on_lease(
    datasets: Sequence[str],
    lease: Callable[[str, Regaining | None], LeasedSet],
    begin: Callable[[str, Regaining], None],
    standing: Standing | None,
    exact: bool,
) -> Iterator[tuple[list[LeasedSet], bool]]:
    """A set of each dataset, in this order, and whether all are the very sets of `standing`.

    `lease` takes one, `begin` has the daemon begin with it. All of them on lease, or none: an error within
    ends the leases, else they are the caller's.
    """
    wanted: dict[str, Regaining] = {}
    if standing is not None:
        both = [name for name in datasets if name in standing.sets]
        wanted = {name: Regaining(standing.sets[name], standing, exact) for name in both}
    if len(wanted) > 1:
        # Before any is waited for: the others would begin meanwhile with what the run has had.
        for name, regaining in wanted.items():
            begin(name, regaining)
    sets: list[LeasedSet] = []
    with ExitStack() as releasing:
        for name in datasets:
            sets.append(leased := lease(name, wanted.get(name)))
            releasing.callback(leased.release)
        yield sets, all(name in wanted and wanted[name].same for name in datasets)
        releasing.pop_all()


class Regaining:
    """One acquire of a run that resumes; `exact`: no other set than the one that was left will do."""

    def __init__(self, left: LeftSet, standing: Standing, exact: bool) -> None:
        """`left` is one of the sets of `standing`."""
        self._left = left
        self._epoch = standing.epoch
        self._exact = exact
        self._given_up = standing.over and not exact
        self._recalled = False
        self.same = False
        """Whether what was granted is the very set."""

    def fields(self) -> dict[str, Any]:
        """What the next Acquire says beside whose epoch it is."""
        left = self._left
        told = {"generation": left.generation, "walk": left.walk, "cursor": left.cursor}
        if self._given_up:
            return {**told, "shards": left.shards[-1:]}
        return {**told, "shards": left.shards, "fingerprint": left.fingerprint}

    def missing(self, told: Missing, ask: Callable[[Request], Reply], wait: Wait) -> None:
        """The daemon has not got the set: has it made again, or gives it up.

        SetGoneError if that cannot be; AcquireTimeoutError.
        """
        left = self._left
        if not self._exact:
            self._say_anew(told.reason)
            self._given_up = True
        elif not told.shards:  # something else has to end first
            wait.pause(Waiting(told.id, 0, 0, 0.0, told.reason))
        else:
            if self._recalled:
                raise SetGoneError(
                    f"{left.dataset}: the set of epoch {self._epoch} was made again, and it is "
                    f"another one: {told.reason}"
                )
            self._recall(told, ask, wait)

    def granted(self, fingerprint: str) -> None:
        """This was; SetGoneError if it is not the set, and must be."""
        self.same = fingerprint == self._left.fingerprint and not self._given_up
        if not (self.same or self._exact or self._given_up):  # by a daemon that knows no resume
            self._say_anew("the daemon gave another set")
        if self._exact and not self.same:
            raise SetGoneError(
                f"{self._left.dataset}: the daemon gave another set than that of the state: it is "
                "older than this client, and cannot resume; install the same release of both"
            )

    def _say_anew(self, reason: str) -> None:
        log.warning(
            "%s: epoch %d begins anew with the set that there is now, as that of the state is gone: "
            "%s (resume='exact' has it fetched again)",
            self._left.dataset, self._epoch, reason,
        )  # fmt: skip

    def _recall(self, told: Missing, ask: Callable[[Request], Reply], wait: Wait) -> None:
        left = self._left
        numbers = numbers_of(told.shards)
        if unknown := [number for number in numbers if not left.recipe_of(number)]:
            raise SetGoneError(
                f"{left.dataset}: {told.reason}, and the state does not say how "
                f"{len(unknown)} of them were made (the first is shard {unknown[0]}): a run says so in its "
                "states if it was begun with resume='exact'; resume='continue' goes on with another set"
            )
        log.warning(
            "%s: %d of the %d shards of epoch %d are fetched again: %s",
            left.dataset, len(numbers), left.num_shards, self._epoch, told.reason,
        )  # fmt: skip
        # All of the set: those that are there have to be the same, or records would be there twice.
        for recipes in _parts([recipe for recipe in left.recipes if recipe]):
            while True:
                request = Recall(
                    uuid.uuid4().hex,
                    left.dataset,
                    left.generation,
                    left.shards,
                    left.num_bytes,
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
