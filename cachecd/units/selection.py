"""Selects the units of a dataset: this node's part of the source, and one side of a split. Pure.

Only hashes of the units' names determine the selection, not the order of the listing, the time or other
nodes. The hashes must never change: otherwise training would use records that were held out.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable

from cachecd.config import DatasetConfig, PartitionConfig, SplitConfig
from cachecd.config.keypattern import found_in
from cachecd.model import ObjectInfo, encoded

Takes = Callable[[ObjectInfo], bool]


def selection_of(dataset: DatasetConfig) -> Takes | None:
    """Returns the predicate for the units that the dataset takes, or None if it takes all units."""
    tests: list[Takes] = []
    if dataset.split is not None:
        tests.append(functools.partial(_on_side, dataset.split, dataset.held_out))
    if dataset.partition is not None:
        tests.append(functools.partial(_in_part, dataset.partition))
    return (lambda unit: all(test(unit) for test in tests)) if tests else None


def held_out(split: SplitConfig, form: str, units: Iterable[ObjectInfo], is_whole: bool) -> str:
    """Returns a sentence with the number of these units that the split holds out. `is_whole`: these are
    all units of the source, and not only the first units."""
    by_unit = split.by == "unit"
    sides = {(u.key, by_unit and u.begin): _on_side(split, True, u) for u in units}
    noun = "units" if by_unit else {"webdataset": "tars"}.get(form, "objects")
    part = sum(sides.values())
    count = f"{'' if is_whole else 'the first '}{len(sides)}"
    return f"eval holds out {part} of {count} {noun}, {100 * part / max(1, len(sides)):.0f} %"


def empty_side(dataset: DatasetConfig, units: int) -> str:
    """Returns the message for a split that leaves this dataset without units."""
    assert dataset.split is not None, "the dataset is not split"
    split = dataset.split
    verb = "holds out none" if dataset.held_out else "holds out all"
    by = f"by {split.by}" if split.group is None else f"by the groups of {split.group!r}"
    divide = (
        ""
        if split.by == "unit" or split.group is not None
        else ", divide the objects with `split.by: unit` (arrays, Parquet files and JSON lines)"
    )
    change = "raise" if dataset.held_out else "lower"
    return (
        f"split.eval {split.eval:g} {by} {verb} of the {units} units of the source, so one side is empty: "
        f"{change} split.eval{divide}, or use a separate dataset for evaluation"
    )


def _in_part(part: PartitionConfig, unit: ObjectInfo) -> bool:
    return _hash(b"cachecd partition 1", _name_of(unit)) % part.count == part.index


def _on_side(split: SplitConfig, held_out: bool, unit: ObjectInfo) -> bool:
    """Whether a unit is on this side of the split. If the split is by key, all units of an object, and all
    objects of a group, are on one side."""
    if split.by == "unit":
        digest = _hash(b"cachecd split by unit 1", _name_of(unit))
    else:
        group = None if split.group is None else found_in(unit.key, split.group, "group")
        digest = _hash(b"cachecd split 1", encoded(unit.key if group is None else group))
    return (digest < split.eval * 2.0**64) == held_out


def _name_of(unit: ObjectInfo) -> bytes:
    return encoded(unit.key) + b"\xff" + unit.begin.to_bytes(8)


def _hash(purpose: bytes, name: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(name, digest_size=8, key=purpose).digest())
