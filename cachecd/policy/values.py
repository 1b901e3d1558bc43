"""The values in events and commands: rules, heads, pieces, leases. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cachecd.model import Cursor, ShardVersion

Intervals = tuple[tuple[int, int, int], ...]  # (stream, first j, last j), ascending
Figures = Mapping[str, float]  # of rotation, by name
NO_FIGURES: Figures = {}


class GenerationId(NamedTuple):
    """Names a generation: the dataset, and the name of its directory."""

    dataset: str
    name: str


class Rules(NamedTuple):
    """The configuration of one dataset, in bytes. `generation` and `split` name the configured
    generation and its split. `awaits_classes`: streams start when the first listing ends."""

    name: str
    generation: str
    first: int
    shard_size: int
    split: str = ""
    per_epoch: int | None = None
    wait: bool = False
    refresh: float = 0.25
    pin: bool = False
    limit: int | None = None
    seed: int = 0
    streams: int = 8
    awaits_classes: bool = False


def split_change(before: str, now: str) -> str:
    """Returns the difference between two splits. A split (`Rules.split`) has a line "NAME: VALUE" for
    each value."""
    if not (before and now):
        return f"split was {'set' if now else 'removed'}"
    old, new = (dict(line.split(": ", 1) for line in text.splitlines()) for text in (before, now))
    return ", ".join(
        f"{name} changed from {old.get(name, 'none')} to {new.get(name, 'none')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )


class Piece(NamedTuple):
    """Records of a unit that a whole dataset lacks: from `record` up to `stop`, or to the unit's end if
    None."""

    unit: int
    record: int = 0
    stop: int | None = None


class Head(NamedTuple):
    """Where a stream continues: the j of its next shard, and the cursor at which that shard begins."""

    next: int
    cursor: Cursor


class Lease(NamedTuple):
    """The file set that a job holds for one epoch. A manifest has these values.

    `versions`: the numbers whose version is not 0. `ranks`: how many processes share the lease. `place`:
    the smallest place of all streams when the lease was granted. `fingerprint` identifies the records.
    `source_records`: the estimated number of records in the source; 0 if unknown. `num_skipped`: the
    number of skipped records within the intervals of the set.
    """

    id: str
    dataset: str
    generation: str
    job: str
    epoch: int
    streams: int
    intervals: Intervals
    versions: tuple[ShardVersion, ...]
    num_records: int
    num_bytes: int
    fingerprint: str
    seed: int
    sampling_seed: int
    pinned: bool
    ranks: int
    place: int
    source_records: int = 0
    num_skipped: int = 0


class Resume(NamedTuple):
    """The set of a resumed run, and the state of its sampling. Without intervals, the run had read the
    whole set."""

    generation: str
    intervals: Intervals
    fingerprint: str
    sampling_seed: int
    streams: int
    place: int
