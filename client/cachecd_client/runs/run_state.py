"""The state of a run, as plain values in the states of its loaders: epoch, sets, records read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from cachecd_client.errors import CallerError
from cachecd_client.loader.sweep import Sweep
from cachecd_client.protocol import Manifest, last_shard

#: The key in a loader's state that has the state of the run.
RUN = "run"
_VERSION = 1


@dataclass(frozen=True)
class SavedSet:
    """A set that the run had on lease: fields of its manifest, by their names there. `fingerprint` is "" if
    all of the set was read."""

    dataset: str
    generation: str
    intervals: list[list[int]]
    fingerprint: str
    sampling_seed: int
    streams: int
    place: int

    @classmethod
    def of_state(cls, values: Mapping[str, Any]) -> SavedSet:
        """ValueError, or another exception, for damaged values."""
        return cls(
            dataset=_text(values["dataset"]),
            generation=_text(values["generation"]),
            intervals=[
                [_number(stream), _number(first), _number(last)]
                for stream, first, last in values["intervals"]
            ],
            fingerprint=_text(values["fingerprint"]),
            sampling_seed=_number(values["sampling_seed"]),
            streams=_number(values["streams"]),
            place=_number(values["place"]),
        )

    def for_acquire(self) -> dict[str, Any]:
        """The fields of an Acquire that name this set."""
        return {
            "generation": self.generation,
            "shards": self.intervals if self.fingerprint else [],
            "fingerprint": self.fingerprint,
            "sampling_seed": self.sampling_seed,
            "streams": self.streams,
            "place": self.place,
        }

    def is_set_of(self, now: Manifest) -> bool:
        """Whether `now` has the same records in the same places."""
        return (
            self.fingerprint == now.fingerprint
            and self.intervals == now.intervals
            and self._is_sampled_as(now)
        )

    def _is_sampled_as(self, now: Manifest) -> bool:
        return (self.sampling_seed, self.streams) == (now.sampling_seed, now.streams)

    def is_ahead_of(self, now: Manifest) -> bool:
        """Whether the cache of this set was further in its source than the cache that granted `now`."""
        if self.generation != now.generation:
            return False  # their numbers cannot be compared
        return (
            not self._is_sampled_as(now)
            or self.place > now.place
            or last_shard(self.intervals, self.streams) > last_shard(now.intervals, now.streams)
        )


_OF_SET = tuple(f.name for f in fields(SavedSet))


@dataclass(frozen=True)
class RunState:
    """A run in epoch `epoch`, with the sets that it had on lease.

    `read`: records before that epoch, over all ranks; `of_epoch`: of that epoch, in steps of `step`.
    `ranks`: of the node, and of all nodes. `position`: batches of the pass; `share`: of the pass.
    `over`: the pass is complete. `sweeps`: before the epoch, or after it if it is over.
    `weights`: the shares of a mixture, empty for a single dataset; `key`: of the mixture's draws.
    `window`: the shuffle window. `state`: the whole state, for the loader.
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
    sweeps: dict[str, Sweep]
    weights: dict[str, float]
    key: int
    sets: dict[str, SavedSet]
    state: dict[str, Any]

    def is_ahead_of(self, sets: Sequence[Manifest]) -> bool:
        """Whether the cache is not the cache of the run: it samples differently, or it is less far in its
        source. Its shard numbers then mean other records."""
        return any(saved.is_ahead_of(now) for now in sets if (saved := self.sets.get(now.dataset)))

    @classmethod
    def of_state(cls, state: Mapping[str, Any], dataset: object) -> RunState:
        """CallerError if it is not the state of a loader of this dataset, or of a mixture if `dataset` is
        no name."""
        values = state.get(RUN) if isinstance(state, Mapping) else None
        if not isinstance(values, Mapping):
            raise CallerError(
                "state: expected the state_dict() of a loader of a leased epoch"
                + (f", not a {type(state).__name__}" if not isinstance(state, Mapping) else "")
                + "; a DataLoader's own state goes into its load_state_dict()"
            )
        if values.get("version") != _VERSION:
            raise CallerError(
                f"state: version {values.get('version')!r} of a run, expected {_VERSION}"
            )
        try:
            sets = [SavedSet.of_state(one) for one in values["sets"]]
            weights = {_text(name): _share(share) for name, share in values.get("weights", ())}
            run_state = cls(
                epoch=_number(values["epoch"]), read=_number(values["read"]),
                of_epoch=_number(values["of_epoch"]), ranks=_ranks(*values["ranks"]),
                step=max(1, _number(state["batch_size"]) * _number(state["world"])),
                share=_share(values["share"]), position=_number(state["position"]),
                over=bool(values["over"]),
                window=None if state["window"] is None else _number(state["window"]),
                sweeps={_text(name): Sweep.of_state(one) for name, one in values["sweeps"].items()},
                weights=weights, key=_number(values["key"]) if weights else 0,
                sets={one.dataset: one for one in sets}, state=dict(state),
            )  # fmt: skip
            weighty = {name for name, share in weights.items() if share}
            # Repeated without a daemon, a mixture has sets too that have no weight any more.
            if not run_state.sets or (
                weights and not weighty <= run_state.sets.keys() <= weights.keys()
            ):
                raise ValueError(f"sets of {list(run_state.sets)}, weights of {list(weights)}")
        except Exception as error:  # garbage raises any error
            raise CallerError(f"state: it is damaged ({error!r})") from error
        of = "a mixture of " * bool(weights) + " and ".join(map(repr, run_state.sets))
        wanted = f"dataset {dataset!r}" if isinstance(dataset, str) else "a mixture"
        if bool(weights) == isinstance(dataset, str) or (
            not weights and dataset not in run_state.sets
        ):
            raise CallerError(f"state: it is of {of}, and the call asks for {wanted}")
        return run_state


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


class StateWriter:
    """Writes the part of a run in the states of one epoch's loaders."""

    def __init__(
        self, epoch: int, sets: Sequence[Manifest], sweeps: Mapping[str, Sweep], ranks: tuple[int, int],
        weights: Mapping[str, float], key: int = 0,
    ) -> None:  # fmt: skip
        """`sets`, `sweeps` and `ranks`: as the epoch begins. `weights` and `key`: of a mixture."""
        self._sweeps = sweeps
        self._constant: dict[str, Any] = {
            "version": _VERSION,
            "epoch": epoch,
            "ranks": list(ranks),
            "sets": [{name: getattr(one, name) for name in _OF_SET} for one in sets],
        }
        if weights:
            self._constant["weights"] = [[name, share] for name, share in weights.items()]
            self._constant["key"] = key

    def write(
        self, position: int, steps: int, after: Mapping[str, Sweep], read: int, of_epoch: int
    ) -> dict[str, Any]:
        """The state at batch `position` of `steps`.

        `after`: the sweeps after the last batch. `read`: records before the epoch, `of_epoch`: of it.
        """
        over = position >= steps
        sweeps = {**self._sweeps, **after} if over else self._sweeps
        changing = {
            "read": read,
            "of_epoch": of_epoch,
            "share": position / steps,
            "over": over,
            "sweeps": {name: sweep.state() for name, sweep in sorted(sweeps.items())},
        }
        return {RUN: self._constant | changing}
