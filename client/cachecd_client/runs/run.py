"""How long a run of epochs is, how far it has come, and what it reads next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cachecd_client.errors import CallerError
from cachecd_client.loader.sweep import Part, Selection, Sweep
from cachecd_client.options import integer
from cachecd_client.runs.run_state import RunState

if TYPE_CHECKING:
    pass


class Run:
    """So many epochs, or so many records over all ranks; each epoch a pass of its set, or so many steps.

    CallerError for lengths that cannot be.
    """

    def __init__(
        self,
        epochs: int | None = None,
        records: int | None = None,
        steps_per_epoch: int | None = None,
        start: int = 0,
        *,
        option: str = "n",
    ) -> None:
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
        """The budget: the share of this node's ranks in it."""
        self.steps_per_epoch = (
            None if steps_per_epoch is None else integer("steps_per_epoch", steps_per_epoch, 1)
        )
        self.number = start
        """Of the epoch that is read, or comes next."""
        self.read = 0
        """Records of the epochs before it, over all ranks of this node."""
        self.sweeps: Mapping[str, Sweep] = {}
        """How far each dataset has been read by epochs that were not a pass of it."""
        self._step = 1  # records of one, over all ranks
        self.ranks = 1, 1
        """Of this node, and of all nodes; as long as it is not said, this node is alone."""

    def among(self, own: int, ranks: int) -> None:
        """The run is one of so many `ranks`, of which `own` are here; until it is said, of these alone.

        As every rank takes as many steps, each node is through its share at the same step.
        """
        if self._budget is not None:
            self.records = own * max(1, self._budget // ranks)
        before, self.ranks = self.ranks, (own, ranks)
        self.read = self.of_node(self.read, before)
        self._step = self.of_node(self._step, before)

    def of_node(self, read: int, ranks: tuple[int, int]) -> int:
        """This node's share of what all have read where one whose ranks were these has read so much.

        Each rank's, so that the nodes are through at the same step, however many ranks each has.
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
        """It goes on where an earlier process left it, in the `same` sets or in others; what of its epoch
        was read was read. Once it is known whether they are the same, it may be told again. `elsewhere`:
        in another cache, where what was read of which shard says nothing."""
        self.number = standing.epoch + standing.over
        self.sweeps = {} if elsewhere else standing.sweeps
        self.read = self.of_node(standing.read, standing.ranks)
        if standing.over or not same:
            self.read += self.of_node(standing.of_epoch, standing.ranks)
        self._step = self.of_node(standing.step, standing.ranks)

    def progress(self, number: int, share: float, read: int) -> float:
        """0..1: how far it is where `share` of epoch `number` is read, and `read` records in all."""
        if self.records is None:
            return min(1.0, (number + share) / max(1, self.epochs or 0))
        return min(1.0, read / self.records)

    def limits(self, num_records: int) -> bool:
        """Whether of a set of so many records something else is read than one pass."""
        left = num_records if self.records is None else self.records - self.read
        return self.steps_per_epoch is not None or left < num_records

    def part(self, length: int, step: int, take: Callable[[int], Selection]) -> Part:
        """What is read, in steps of so many records over all ranks, of what has `length` if nobody says
        how many steps."""
        steps = self.steps_per_epoch or max(1, length // step)
        if self.records is not None:
            steps = max(1, min(steps, (self.records - self.read) // step))
        return Part(steps, take(steps * step))

    def ended(self, read: int, step: int, part: Part | None) -> None:
        """An epoch is over: so many records of it were read, in steps of `step`. What `part` had and was
        not read, as its pass was ended early, comes again with the next sweep."""
        self.number += 1
        self.read += read
        self._step = step
        if part is not None:
            self.sweeps = {**self.sweeps, **part.selection.after}
