"""A run of epochs: its length, its progress, and the part of each set that it reads next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from cachecd_client.errors import CallerError
from cachecd_client.frameworks.collective import AllGather
from cachecd_client.loader.sweep import Part, Selection, Sweep
from cachecd_client.options import integer
from cachecd_client.runs.run_state import RunState


class RunOptions(TypedDict, total=False):
    """The options of a run. `Cache.epochs` explains them."""

    records: int | None
    steps_per_epoch: int | None
    start: int
    job: str | None
    timeout: float | None
    agree: bool | AllGather
    state: Mapping[str, Any] | None
    rank: int | None
    world: int | None


class Run:
    """A run of a number of epochs, or of records over all ranks. An epoch is one pass of its set, or
    `steps_per_epoch`. CallerError for an impossible length."""

    def __init__(
        self, epochs: int | None = None, records: int | None = None, steps_per_epoch: int | None = None,
        start: int = 0, *, option: str = "n",
    ) -> None:  # fmt: skip
        """`option`: how the caller names the number of epochs."""
        if (epochs is None) == (records is None):
            raise CallerError(
                f"{option}={epochs}, records={records}: expected one of them, the length of the run in "
                "epochs, or in records over all ranks"
            )
        start = integer("start", start, 0)
        if epochs is not None and not start <= integer(option, epochs, 0):
            raise CallerError(
                f"start={start}, {option}={epochs}: expected 0 <= start <= {option}; the start of a state "
                "is its epoch"
            )
        self.epochs = epochs
        self._budget = None if records is None else integer("records", records, 1)
        self.records = self._budget
        """The records that the ranks of this node read; None: the run is counted in epochs."""
        self.steps_per_epoch = (
            None if steps_per_epoch is None else integer("steps_per_epoch", steps_per_epoch, 1)
        )
        self.number = start
        """The current epoch, or the next one."""
        self.read = 0
        """Records of the epochs before `number`, over all ranks of this node."""
        self.sweeps: Mapping[str, Sweep] = {}
        """By dataset, the progress of epochs that were not one pass of it."""
        self._step = 1  # records of one, over all ranks
        self.ranks = 1, 1
        """The ranks of this node and of all nodes; until `set_ranks`, this node is alone."""

    def set_ranks(self, own: int, ranks: int) -> None:
        """Sets the number of ranks of the run, of which `own` are on this node.

        All ranks take the same number of steps, so all nodes finish their share at the same step.
        """
        if self._budget is not None:
            self.records = own * max(1, self._budget // ranks)
        before, self.ranks = self.ranks, (own, ranks)
        self.read = self.of_node(self.read, before)
        self._step = self.of_node(self._step, before)

    def of_node(self, read: int, ranks: tuple[int, int]) -> int:
        """The records that this node has read, if a node with these `ranks` has read `read` records.

        It is counted for each rank, so that nodes with different numbers of ranks finish at the same step.
        """
        (their_own, theirs), (own, every) = ranks, self.ranks
        return own * -(-read * theirs // (their_own * every))

    @property
    def over(self) -> bool:
        """Whether nothing is left: no epoch, or fewer records than one step has."""
        return self.ends_before(self.number, self.read, self._step)

    def ends_before(self, number: int, read: int, step: int) -> bool:
        """Whether there is no epoch `number` after `read` records, in steps of `step`."""
        if self.records is None:
            return number >= (self.epochs or 0)
        return self.records - read < step

    def resumed(self, standing: RunState, same: bool, elsewhere: bool = False) -> None:
        """Resumes the run of an earlier process, in the `same` sets or in others: records that were read of
        its epoch count. May be called again when the sets are known. `elsewhere`: in another cache, whose
        shards have other records, so sweeps begin anew."""
        self.number = standing.epoch + standing.over
        self.sweeps = {} if elsewhere else standing.sweeps
        self.read = self.of_node(standing.read, standing.ranks)
        if standing.over or not same:
            self.read += self.of_node(standing.of_epoch, standing.ranks)
        self._step = self.of_node(standing.step, standing.ranks)

    def progress(self, number: int, share: float, read: int) -> float:
        """0..1: the progress after a `share` of epoch `number`, and `read` records in all."""
        if self.records is None:
            return min(1.0, (number + share) / max(1, self.epochs or 0))
        return min(1.0, read / self.records)

    def limits(self, num_records: int) -> bool:
        """Whether an epoch of a set of `num_records` is something else than one pass."""
        left = num_records if self.records is None else self.records - self.read
        return self.steps_per_epoch is not None or left < num_records

    def part(self, length: int, step: int, take: Callable[[int], Selection]) -> Part:
        """The part that an epoch reads, in steps of `step` records over all ranks. `length`: records of the
        epoch without `steps_per_epoch`."""
        steps = self.steps_per_epoch or max(1, length // step)
        if self.records is not None:
            steps = max(1, min(steps, (self.records - self.read) // step))
        return Part(steps, take(steps * step))

    def ended(self, read: int, step: int, part: Part | None) -> None:
        """Ends an epoch, of which `read` records were read in steps of `step`. Unread records of `part`, if
        its pass was left early, come again with the next sweep."""
        self.number += 1
        self.read += read
        self._step = step
        if part is not None:
            self.sweeps = {**self.sweeps, **part.selection.after}
