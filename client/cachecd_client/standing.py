"""Where a run stands, as plain values in its loaders' states: its epoch, the sets, what was read before."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cachecd_client.errors import CachecdError, CallerError
from cachecd_client.mix import Mix
from cachecd_client.protocol import AskRecipes, Manifest, Recipes
from cachecd_client.sweep import Sweep
from cachecd_client.transport import Transport

if TYPE_CHECKING:
    from cachecd_client.leased import LeasedSet
    from cachecd_client.loader import Loader
    from cachecd_client.run import Run

log = logging.getLogger("cachecd")

#: The key of a loader's state under which all this is.
RUN = "run"
_VERSION = 1
_TIMEOUT = 5.0  # seconds that a training loop may stand still for one part of a set's recipes
_PAUSE = 30.0  # seconds without another attempt, when nobody answered


@dataclass(frozen=True)
class LeftSet:
    """A set that a run had on lease where it was left.

    `recipes`: how each of its shards was made, in their order; none if the run does not carry that.
    """

    dataset: str
    generation: str
    shards: list[list[int]]
    num_bytes: int
    fingerprint: str
    walk: str
    cursor: list[int]
    recipes: list[str]

    @classmethod
    def of_state(cls, told: Mapping[str, Any]) -> LeftSet:
        """ValueError, or another error that means it, for what is no state."""
        found = cls(
            dataset=_text(told["dataset"]),
            generation=_text(told["generation"]),
            shards=[[_number(first), _number(last)] for first, last in told["shards"]],
            num_bytes=_number(told["num_bytes"]),
            fingerprint=_text(told["fingerprint"]),
            walk=_text(told["walk"]),
            cursor=[_number(place) for place in told["cursor"]],
            recipes=[_text(recipe) for recipe in told.get("recipes", ())],
        )
        if found.recipes and len(found.recipes) != found.num_shards:
            raise ValueError(f"recipes of {len(found.recipes)} shards of {found.num_shards}")
        return found

    @property
    def num_shards(self) -> int:
        """Of the set."""
        return sum(last - first + 1 for first, last in self.shards)

    def recipe_of(self, number: int) -> str:
        """Of a shard of the set; "" if it is not known."""
        place = 0
        for first, last in self.shards:
            if first <= number <= last:
                return self.recipes[place + number - first] if self.recipes else ""
            place += last - first + 1
        return ""


@dataclass(frozen=True)
class Standing:
    """A run as a state has it, in epoch `epoch`, with the sets that it had on lease.

    `read`: records before that epoch, over all ranks, and `of_epoch` those of it, in steps of `step`;
    these ranks, and those of all nodes, are `ranks`.
    `position` in its pass, of which that is a `share`. `way`: before it, or, if it is `over`, after it.
    `weights`: each dataset's share of a mixture; none of a single dataset. `window`: its shuffle window.
    `state`: all of it, for the loader.
    """

    epoch: int
    read: int
    of_epoch: int
    ranks: tuple[int, int]
    step: int
    share: float
    position: int
    over: bool
    window: int | None
    way: Sweep | Mix
    weights: dict[str, float]
    sets: dict[str, LeftSet]
    state: dict[str, Any]

    @classmethod
    def of_state(cls, state: Mapping[str, Any], dataset: object) -> Standing:
        """CallerError if it is no state of a loader of this dataset's lease, or of one of a mixture if
        `dataset` is no name."""
        told = state.get(RUN) if isinstance(state, Mapping) else None
        if not isinstance(told, Mapping):
            raise CallerError(
                "state: expected what `state_dict()` of a leased epoch's loader gave"
                + (f", not a {type(state).__name__}" if not isinstance(state, Mapping) else "")
                + "; a DataLoader's own state goes into its load_state_dict()"
            )
        if told.get("version") != _VERSION:
            raise CallerError(
                f"state: version {told.get('version')!r} of a run, expected {_VERSION}"
            )
        try:
            sets = [LeftSet.of_state(one) for one in told["sets"]]
            weights = {_text(name): _share(share) for name, share in told.get("weights", ())}
            way = told["way"]
            found = cls(
                epoch=_number(told["epoch"]),
                read=_number(told["read"]),
                of_epoch=_number(told["of_epoch"]),
                ranks=_ranks(*told["ranks"]),
                step=max(1, _number(state["batch_size"]) * _number(state["world"])),
                share=_share(told["share"]),
                position=_number(state["position"]),
                over=bool(told["over"]),
                window=None if state["window"] is None else _number(state["window"]),
                way=Mix.of_state(way) if weights else Sweep.of_state(way),
                weights=weights,
                sets={one.dataset: one for one in sets},
                state=dict(state),
            )
            weighty = {name for name, share in weights.items() if share}
            # Repeated without a daemon, a mixture has sets too that have no weight any more.
            if not found.sets or (weights and not weighty <= found.sets.keys() <= weights.keys()):
                raise ValueError(f"sets of {list(found.sets)}, weights of {list(weights)}")
        except Exception as error:  # whatever garbage makes of it
            raise CallerError(f"state: it is damaged ({error!r})") from error
        of = "a mixture of " * bool(weights) + " and ".join(map(repr, found.sets))
        wanted = f"dataset {dataset!r}" if isinstance(dataset, str) else "a mixture"
        if bool(weights) == isinstance(dataset, str) or (not weights and dataset not in found.sets):
            raise CallerError(f"state: it is of {of}, and epochs() is asked for {wanted}")
        return found


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number")
    return value


def _ranks(own: Any, all_nodes: Any) -> tuple[int, int]:
    if not 0 < _number(own) <= _number(all_nodes):
        raise ValueError(f"{own} of {all_nodes} ranks")
    return own, all_nodes


def _share(value: Any) -> float:
    if not isinstance(value, (int, float)) or not (math.isfinite(value) and 0 <= value <= 1):
        raise ValueError(f"{value!r} is no share")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


class Telling:
    """What the loaders of one leased epoch say in their states of the run."""

    def __init__(
        self, sets: Sequence[LeasedSet], weights: Mapping[str, float], run: Run | None
    ) -> None:
        """`weights` of a mixture, none of a single dataset."""
        self._way: Sweep | Mix = Mix() if weights else Sweep()
        if run is not None:
            self._way = run.mix if weights else run.sweep
        self._ranks = (1, 1) if run is None else run.ranks
        self._epoch = sets[0].number
        self._weights = weights
        exact = run is not None and run.exact
        self._sets = [_ToldSet(leased.transport, leased.manifest, exact) for leased in sets]

    def about(self, loader: Loader, read: int, of_epoch: int) -> dict[str, Any]:
        """For the loader's state: so many records were read before the epoch, and of it."""
        over = loader.position >= len(loader)
        way = loader.part.after if over and loader.part is not None else self._way
        told: dict[str, Any] = {
            "version": _VERSION,
            "epoch": self._epoch,
            "read": read,
            "of_epoch": of_epoch,
            "ranks": list(self._ranks),
            "share": loader.position / len(loader),
            "over": over,
            "way": way.state(),
            "sets": [one.told(self._epoch) for one in self._sets],
        }
        if self._weights:
            told["weights"] = [[name, share] for name, share in self._weights.items()]
        return {RUN: told}


class _ToldSet:
    """One of the sets, as `LeftSet` has it; if `exact`, with its recipes."""

    def __init__(self, transport: Transport, manifest: Manifest, exact: bool) -> None:
        self._transport = transport
        self._manifest = manifest
        self._exact = exact
        self._recipes: list[str] | None = None
        self._silent_until = 0.0

    def told(self, epoch: int) -> dict[str, Any]:
        manifest = self._manifest
        told = {
            "dataset": manifest.dataset,
            "generation": manifest.generation,
            "shards": manifest.shards,
            "num_bytes": manifest.num_bytes,
            "fingerprint": manifest.fingerprint,
            "walk": manifest.walk,
            "cursor": manifest.cursor,
        }
        if self._exact and (recipes := self._known_recipes(epoch)) is not None:
            told["recipes"] = recipes
        return told

    def _known_recipes(self, epoch: int) -> list[str] | None:
        """Asked for once a lease; None, said in the log, while the daemon does not tell."""
        if self._recipes is None and time.monotonic() >= self._silent_until:
            try:
                self._recipes = recipes_of(self._transport, self._manifest)
            except CachecdError as error:
                self._silent_until = time.monotonic() + _PAUSE
                log.warning(
                    "%s: the state of epoch %d does not say how its set was made, so it resumes only where "
                    "that is on disk: %s",
                    self._manifest.dataset, epoch, error,
                )  # fmt: skip
        return self._recipes


def recipes_of(transport: Transport, manifest: Manifest) -> list[str]:
    """How each shard of a lease was made, in their order. Errors as of `Transport.ask`."""
    numbers = manifest.numbers()
    found: list[str] = []
    with transport.conversation() as daemon:
        while len(found) < len(numbers):
            request = AskRecipes(uuid.uuid4().hex, manifest.lease, numbers[len(found)])
            reply = daemon.ask(request, _TIMEOUT)
            assert isinstance(reply, Recipes)
            if not reply.recipes:
                raise CallerError(f"the daemon knows no recipe of shard {numbers[len(found)]}")
            found += reply.recipes
    if unknown := [n for n, recipe in zip(numbers, found, strict=True) if not recipe]:
        log.warning(
            "%s: it is not known any more how %d of the set's %d shards were made (the first is %d): "
            "where they are gone, the state cannot be resumed with resume='exact'",
            manifest.dataset, len(unknown), len(numbers), unknown[0],
        )  # fmt: skip
    return found[: len(numbers)]
