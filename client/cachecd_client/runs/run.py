"""A run of epochs: its length and progress, the next part of each set to read, and its state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypedDict

from cachecd_client.errors import CallerError
from cachecd_client.frameworks.collective import AllGather
from cachecd_client.loader.sweep import Part, Selection, Sweep
from cachecd_client.options import integer
from cachecd_client.protocol import Manifest, last_shard
from cachecd_client.schema import Schema


class RunOptions(TypedDict, total=False):
    """The options of a run. `Cache.epochs` explains them."""

    records: int | None
    tokens: int | None
    steps_per_epoch: int | None
    start: int
    job: str | None
    timeout: float | None
    agree: bool | AllGather
    state: Mapping[str, Any] | None
    rank: int | None
    world: int | None


class Run:
    """A run of a number of epochs, or of records across all ranks. An epoch is one pass of its set, or
    `steps_per_epoch`. CallerError for an impossible length."""

    def __init__(
        self, epochs: int | None = None, records: int | None = None, steps_per_epoch: int | None = None,
        start: int = 0, tokens: int | None = None, *, option: str = "n",
    ) -> None:  # fmt: skip
        """`option`: the caller's name of `epochs`. `tokens` replaces `records`: see `count_tokens`."""
        if [epochs, records, tokens].count(None) != 2:
            raise CallerError(
                f"{option}={epochs}, records={records}, tokens={tokens}: expected one of them. {option} is "
                "the length of the run in epochs, records and tokens are its length in records or tokens "
                "across all ranks"
            )
        start = integer("start", start, 0)
        if epochs is not None and not start <= integer(option, epochs, 0):
            raise CallerError(
                f"start={start}, {option}={epochs}: expected 0 <= start <= {option}; with state=, the "
                "state's epoch is the start"
            )
        self.epochs = epochs
        self._tokens = None if tokens is None else integer("tokens", tokens, 1)
        # Tokens of each record, if the length of the run is in tokens; 0: not known yet.
        self.window = 0
        # A record has at least one token.
        self._budget = self._tokens if records is None else integer("records", records, 1)
        self.records = self._budget  # to read on this node; None: the run is counted in epochs
        self.steps_per_epoch = (
            None if steps_per_epoch is None else integer("steps_per_epoch", steps_per_epoch, 1)
        )
        self.number = start  # the current epoch, or the next epoch
        self.read = 0  # records of the epochs before `number`, across all ranks of this node
        self.sweeps: Mapping[str, Sweep] = {}  # by dataset, after epochs that were not one pass
        self._step = 1  # records of one step, across all ranks
        self.ranks = 1, 1  # ranks on this node and on all nodes; see `set_ranks`

    def count_tokens(self, schemas: Sequence[Schema]) -> None:
        """Converts the run's length in tokens to records, once the first sets show how many tokens a record
        has. CallerError if records have different numbers of tokens."""
        if self._tokens is None:
            return
        lengths = {schema.tokens for schema in schemas} | ({self.window} if self.window else set())
        if len(lengths) != 1 or not (length := lengths.pop()):
            raise CallerError(
                f"tokens={self._tokens}: expected datasets whose records are windows of one length, as the "
                f"step `pack` makes them; found {sorted(map(str, lengths))}. Use `records=`"
            )
        self._set_window(length)

    def _set_window(self, tokens: int) -> None:
        if self._tokens is not None and tokens and not self.window:
            self.window = tokens
            self._budget = max(1, self._tokens // tokens)
            self.set_ranks(*self.ranks)

    def set_ranks(self, own: int, ranks: int) -> None:
        """Sets the number of ranks of the run; `own` of them are on this node. All ranks take the same
        number of steps, so all nodes finish their share at the same step."""
        if self._budget is not None:
            self.records = own * max(1, self._budget // ranks)
        before, self.ranks = self.ranks, (own, ranks)
        self.read = self.of_node(self.read, before)
        self._step = self.of_node(self._step, before)

    def of_node(self, read: int, ranks: tuple[int, int]) -> int:
        """Returns how many records this node has read if a node with these `ranks` has read `read` records.
        The count per rank is equal, so that nodes with more or fewer ranks finish at the same step."""
        (their_own, theirs), (own, every) = ranks, self.ranks
        return own * -(-read * theirs // (their_own * every))

    @property
    def over(self) -> bool:
        """Whether no epoch is left, or fewer records than one step has."""
        return self.ends_before(self.number, self.read, self._step)

    def ends_before(self, number: int, read: int, step: int) -> bool:
        """Whether there is no epoch `number` after `read` records, in steps of `step`."""
        if self.records is None:
            return number >= (self.epochs or 0)
        return self.records - read < step

    def resumed(self, state: RunState, same: bool, other_cache: bool = False) -> None:
        """Resumes the run of an earlier process. `same`: with the same sets; otherwise the records of the
        state's epoch count as read. May be called again when the sets are known. `other_cache`: the shards
        have other records, so sweeps start again."""
        self._set_window(state.tokens)
        self.number = state.epoch + state.over
        self.sweeps = {} if other_cache else state.sweeps
        self.read = self.of_node(state.read, state.ranks)
        if state.over or not same:
            self.read += self.of_node(state.of_epoch, state.ranks)
        self._step = self.of_node(state.step, state.ranks)

    def progress(self, number: int, share: float, read: int) -> float:
        """Returns the progress, 0..1, after a `share` of epoch `number`, and `read` records in all."""
        if self.records is None:
            return min(1.0, (number + share) / max(1, self.epochs or 0))
        return min(1.0, read / self.records)

    def limits(self, num_records: int) -> bool:
        """Whether an epoch of a set with `num_records` records is not exactly one pass."""
        left = num_records if self.records is None else self.records - self.read
        return self.steps_per_epoch is not None or left < num_records

    def part(self, length: int, step: int, take: Callable[[int], Selection]) -> Part:
        """Returns the part that an epoch reads, in steps of `step` records across all ranks. `length`: the
        records of the epoch if `steps_per_epoch` is not given."""
        steps = self.steps_per_epoch or max(1, length // step)
        if self.records is not None:
            steps = max(1, min(steps, (self.records - self.read) // step))
        return Part(steps, take(steps * step))

    def ended(self, read: int, step: int, part: Part | None) -> None:
        """Ends an epoch that read `read` records in steps of `step`. If the loop left the pass over `part`
        early, the next sweep delivers the unread records."""
        self.number += 1
        self.read += read
        self._step = step
        if part is not None:
            self.sweeps = {**self.sweeps, **part.selection.after}


#: The key of the run's state in a loader's state.
RUN = "run"
_VERSION = 1


@dataclass(frozen=True)
class SavedSet:
    """A set that the run leased: fields of its manifest. `fingerprint` is "" if the whole set was
    read."""

    dataset: str
    generation: str
    intervals: list[list[int]]
    fingerprint: str
    sampling_seed: int
    streams: int
    place: int

    @classmethod
    def of_state(cls, values: Mapping[str, Any]) -> SavedSet:
        """Raises ValueError, or another exception, for damaged values."""
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
        """Returns the fields of an Acquire that name this set."""
        fields = asdict(self)
        del fields["dataset"], fields["intervals"]
        return {**fields, "shards": self.intervals if self.fingerprint else []}

    def is_set_of(self, now: Manifest) -> bool:
        """Whether the current set `now` has the same records in the same places."""
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
            return False  # shard numbers of different generations cannot be compared
        return (
            not self._is_sampled_as(now)
            or self.place > now.place
            or last_shard(self.intervals, self.streams) > last_shard(now.intervals, now.streams)
        )


_OF_SET = tuple(f.name for f in fields(SavedSet))


@dataclass(frozen=True)
class RunState:
    """A run in epoch `epoch`, with the sets that it leased.

    `read`: records read before that epoch, across all ranks; `of_epoch`: records read in that epoch, in
    steps of `step`. `ranks`: ranks on the node, and on all nodes. `position`: delivered batches of the
    pass; `share`: the delivered share of the pass. `over`: the pass is complete. `sweeps`: after the epoch
    if it is over, else before the epoch. `weights`: the shares of a mixture, empty for a single dataset;
    `key`: the key of the mixture's draws. `window`: the shuffle window. `tokens`: as `Run.window`. `state`:
    the whole state, for the loader.
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
    tokens: int
    sets: dict[str, SavedSet]
    state: dict[str, Any]

    def is_ahead_of(self, sets: Sequence[Manifest]) -> bool:
        """Whether this is not the cache of the run: it samples differently, or has read less of the source.
        The same shard numbers then mean other records."""
        return any(saved.is_ahead_of(now) for now in sets if (saved := self.sets.get(now.dataset)))

    @classmethod
    def of_state(cls, state: Mapping[str, Any], dataset: object) -> RunState:
        """Raises CallerError if this is not the state of a loader of this dataset, or of a mixture if
        `dataset` is not a name."""
        values = state.get(RUN) if isinstance(state, Mapping) else None
        if not isinstance(values, Mapping):
            raise CallerError(
                "state: expected the state_dict() of a loader of a leased epoch"
                + (f", not a {type(state).__name__}" if not isinstance(state, Mapping) else "")
                + "; load the state of a DataLoader with its load_state_dict()"
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
                tokens=_number(values.get("tokens", 0)),
                sets={one.dataset: one for one in sets}, state=dict(state),
            )  # fmt: skip
            weighty = {name for name, share in weights.items() if share}
            # Repeated without a daemon, a mixture also has sets whose weight is now 0.
            if not run_state.sets or (
                weights and not weighty <= run_state.sets.keys() <= weights.keys()
            ):
                raise ValueError(f"sets of {list(run_state.sets)}, weights of {list(weights)}")
        except Exception as error:  # garbage raises any error
            raise CallerError(f"state: it is damaged ({error!r})") from error
        actual = "a mixture of " * bool(weights) + " and ".join(map(repr, run_state.sets))
        wanted = f"dataset {dataset!r}" if isinstance(dataset, str) else "a mixture"
        if bool(weights) == isinstance(dataset, str) or (
            not weights and dataset not in run_state.sets
        ):
            raise CallerError(f"state: it is the state of {actual}, but this call is for {wanted}")
        return run_state


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number")
    return value


def _ranks(own: Any, all_nodes: Any) -> tuple[int, int]:
    if not 0 < _number(own) <= _number(all_nodes):
        raise ValueError(f"{own} of {all_nodes} ranks")
    return own, all_nodes


def _share(value: Any) -> float:
    if not isinstance(value, (int, float)) or not (math.isfinite(value) and 0 <= value <= 1):
        raise ValueError(f"{value!r} is not a share")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def state_of(
    epoch: int, sets: Sequence[Manifest], sweeps: Mapping[str, Sweep], ranks: tuple[int, int],
    weights: Mapping[str, float], key: int, *, share: float, read: int, of_epoch: int, tokens: int,
) -> dict[str, Any]:  # fmt: skip
    """Returns the run's part of a loader's state after a `share` of its pass; the inverse of
    `RunState.of_state`. `weights` and `key`: the weights and the key of a mixture; `tokens`: as
    `Run.window`."""
    values: dict[str, Any] = {
        "version": _VERSION,
        "epoch": epoch,
        "ranks": list(ranks),
        "sets": [{name: getattr(one, name) for name in _OF_SET} for one in sets],
        "read": read,
        "of_epoch": of_epoch,
        "share": share,
        "over": share >= 1,
        **({"tokens": tokens} if tokens else {}),
        "sweeps": {name: sweep.state() for name, sweep in sorted(sweeps.items())},
    }
    if weights:
        values |= {"weights": list(map(list, weights.items())), "key": key}
    return {RUN: values}
