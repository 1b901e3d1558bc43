"""Does a record lie in two shards of one set? Told from sidecars alone.

A sidecar names each record by its unit and its ordinal there. Shards whose names of units come from one
listing, and which are of one generation, must not name a record twice: a lease may name all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cachecd.layout import Layout
from cachecd_client._core import Sidecar


@dataclass(frozen=True, slots=True)
class Spans:
    """What a shard holds: of `units`, which has a unit once for each run of its records, those of ordinal
    `first` to `last`. `walk`: dataset, generation and listing."""

    path: Path
    walk: tuple[str, str, str]
    number: int
    units: NDArray[np.uint64]
    first: NDArray[np.uint32]
    last: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Two shards hold a record of `unit`."""

    path: Path
    other: Path
    unit: int


def spans_of(path: Path) -> Spans | None:
    """As the sidecar of the shard at `path` says; None if it does not say of which listing its units are.
    FileNotFoundError, OSError, CorruptSidecarError."""
    sidecar = Sidecar.read(str(Layout.sidecar(path)))
    meta = json.loads(sidecar.meta)
    names = [meta.get(key) for key in ("dataset", "generation", "index")]
    if not all(isinstance(name, str) for name in names) or not len(sidecar):
        return None
    units, ordinals = sidecar.units, sidecar.ordinals
    order = np.lexsort((ordinals, units))
    units, ordinals = units[order], ordinals[order]
    # A shard may hold the first and the last records of a unit, and another those between.
    begins = np.flatnonzero(
        np.r_[True, (units[1:] != units[:-1]) | (np.diff(ordinals.astype(np.int64)) > 1)]
    )
    ends = np.r_[begins[1:], len(units)] - 1
    dataset, generation, index = map(str, names)
    walk = (dataset, generation, index)
    number = int(meta.get("number", 0))
    return Spans(path, walk, number, units[begins], ordinals[begins], ordinals[ends])


def repeats(held: Sequence[Spans], leases: Path) -> Iterator[Repeat]:
    """Pairs of shards of which one set would have a record twice; of each two shards one unit.

    A set is what a lease names, or what no lease names: a shard that was given up stays as long as it is
    leased, beside those that took its place.
    """
    by_walk: dict[tuple[str, str, str], list[Spans]] = {}
    for spans in held:
        by_walk.setdefault(spans.walk, []).append(spans)
    leased = _leased(leases)
    found: set[tuple[Path, Path]] = set()
    for walk, mine in by_walk.items():
        numbers = np.array([spans.number for spans in mine])
        named = [_within(numbers, ranges) for dataset, ranges in leased if dataset == walk[0]]
        free = ~np.logical_or.reduce([np.zeros(len(mine), np.bool_), *named])
        for among in (free, *named):
            for repeat in _among(
                [spans for spans, is_in in zip(mine, among, strict=True) if is_in]
            ):
                pair = repeat.path, repeat.other
                if pair not in found:
                    found.add(pair)
                    yield repeat


def _among(shards: Sequence[Spans]) -> Iterator[Repeat]:
    if len(shards) < 2:
        return
    units, first, last = (
        np.concatenate([getattr(spans, name) for spans in shards])
        for name in ("units", "first", "last")
    )
    of = np.repeat(np.arange(len(shards)), [len(spans.units) for spans in shards])
    order = np.lexsort((first, units))
    units, first, last, of = units[order], first[order], last[order], of[order]
    # Of the runs so far, which one of this unit goes furthest.
    unit = np.cumsum(np.r_[False, units[1:] != units[:-1]]).astype(np.uint64) << np.uint64(32)
    ends = unit | last
    furthest = np.maximum.accumulate(
        np.where(ends == np.maximum.accumulate(ends), np.arange(len(ends)), 0)
    )
    same = (unit | first)[1:] <= ends[furthest[:-1]]
    pairs: set[tuple[int, int]] = set()
    for place in np.flatnonzero(same).tolist():
        one, other = sorted((int(of[furthest[place]]), int(of[place + 1])))
        if (one, other) not in pairs:
            pairs.add((one, other))
            yield Repeat(shards[other].path, shards[one].path, int(units[place]))


def _within(numbers: NDArray[np.int64], ranges: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
    found = np.zeros(len(numbers), np.bool_)
    for first, last in ranges:
        found |= (numbers >= first) & (numbers <= last)
    return found


def _leased(leases: Path) -> list[tuple[str, list[list[int]]]]:
    """Dataset and ranges of shards of each manifest that can be read."""
    found = []
    for path in sorted(leases.glob("*.json")):
        try:
            manifest = json.loads(path.read_text())
            found.append(
                (str(manifest["dataset"]), [[int(a), int(b)] for a, b in manifest["shards"]])
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue  # it has ended, or is damaged: a start of the daemon says so
    return found
