"""The figures of a pass: steps, records, and the seconds that the loop waited, by stage."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import NamedTuple, Protocol, Self, TypeVar

from cachecd_client._core import Division
from cachecd_client.protocol import Span

#: The levels at which the core counts the fill of the queue: 0/31, 1/31 ... 31/31.
_LEVELS = 32

Key = TypeVar("Key", str, int)


class Sums(dict[Key, float]):
    """Numbers by name. `+` adds them by name."""

    def __add__(self, other: Mapping[Key, float]) -> Self:
        total = type(self)(self)
        for key, number in other.items():
            total[key] = total.get(key, 0.0) + number
        return total


class Figures(NamedTuple):
    """The figures of a pass until now, or of several passes together."""

    steps: int = 0
    records: int = 0  # records of this rank, without padding
    reads: int = 0  # records across all ranks
    rows: int = 0  # rows across all ranks, with padding
    delivered: int = 0  # `reads`, and the records that a whole pass omits, if less than a step
    dropped: int = 0  # records that `drop_last` omits from a whole pass, across all ranks
    bytes: int = 0
    waited: float = 0.0  # seconds until a batch was ready, or the files were open
    elapsed: float = (
        0.0  # seconds from the beginning of the pass until now, or until its last batch
    )
    queue: float = 0.0  # the sum across all steps
    stages: Sums[str] = Sums()  # `waited` by what the reader did meanwhile
    fills: Sums[int] = Sums()  # how often the queue had each fill, 0 to 31

    def plus(self, other: Figures) -> Figures:
        return Figures(*map(operator.add, self, other))

    def queue_percentile(self, share: float) -> float | None:
        """Returns the fill of the queue, 0..1, that this share of the steps did not exceed; None if there
        were no steps."""
        left = share * sum(self.fills.values())
        for fill, steps in sorted(self.fills.items()):
            left -= steps
            if left <= 0:
                return fill / (_LEVELS - 1)
        return None


class Measured(Protocol):
    """What a reader, or a stage after it, has measured in a pass."""

    @property
    def position(self) -> int: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def seconds_waited(self) -> float: ...
    @property
    def seconds_by_stage(self) -> dict[str, float]: ...
    @property
    def seconds_idle(self) -> float: ...
    @property
    def queue(self) -> float: ...
    @property
    def queue_filled(self) -> float: ...
    @property
    def queue_counts(self) -> list[int]: ...
    def take_spans(self) -> list[Span]: ...


def figures_of(
    source: Measured, division: Division, rank: int, step: int, dropped: int, *, start: int,
    elapsed: float, opening: float,
) -> Figures:  # fmt: skip
    """Returns the figures of a pass from batch `start` on. `step`: records of a step across all ranks;
    `dropped`: records that the whole pass omits; `opening`: seconds to open its files."""
    end = source.position
    is_whole = end == division.steps
    reads = min(end * step, division.records) - min(start * step, division.records)
    omitted = max(0, division.records - division.steps * step) if is_whole else 0
    stages = Sums({"open": opening}) + source.seconds_by_stage
    waited = opening + source.seconds_waited
    stages["other"] = max(0.0, waited - sum(stages.values()))
    return Figures(
        steps=end - start,
        records=division.begin(end, rank) - division.begin(start, rank),
        reads=reads,
        rows=(end - start) * step,
        delivered=reads + (omitted if omitted < step else 0),
        dropped=dropped if is_whole else 0,
        bytes=source.bytes_read,
        waited=waited,
        # If a loop stops after the last batch, the pass does not end.
        elapsed=elapsed - (source.seconds_idle if is_whole else 0.0),
        queue=source.queue_filled,
        stages=stages,
        fills=Sums({fill: steps for fill, steps in enumerate(source.queue_counts) if steps}),
    )
