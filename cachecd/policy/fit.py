"""Checks that first sets and pinned sets fit the limit, before fetching begins. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cachecd.errors import LimitTooSmallError
from cachecd.policy.room import footprint
from cachecd.policy.shares import LEAST_FOOTPRINTS
from cachecd.policy.values import Rules
from cachecd.quantities import approximate_size

# Bytes of everything under cache.dir except shards and units of listings, plus the growth between two #
# measurements.
EMPTY_CACHE = 768 << 10
# The part of a shard that has records. The rest is the sidecar, and room too small for the next record.
_FILLED = 0.85
_PER_UNIT = 128  # bytes of a small object's key, label, frame and sidecar
_MIB = 1 << 20


def refuse_small_limit(
    limit: int, datasets: Sequence[Rules], sizes: Mapping[str, int], block: int = 4096
) -> None:
    """`sizes`: the bytes of all shards of each pinned dataset, if known (`set_size`).

    Raises LimitTooSmallError, "KEY: found, expected ...", if the datasets cannot reach `grow.first` and
    rotate, or if a pinned set does not fit.
    """
    needs = {
        rules.name: _need(rules, sizes.get(rules.name), footprint(rules.shard_size, block))
        for rules in datasets
    }
    for rules in datasets:
        if rules.limit is not None and rules.limit < needs[rules.name]:
            raise _too_small(f"datasets.{rules.name}.limit", rules.limit, needs[rules.name], rules)
    needed = EMPTY_CACHE + sum(needs.values())
    if limit < needed:
        largest = max(datasets, key=lambda rules: needs[rules.name])
        raise _too_small("cache.limit", limit, needed, largest)


def set_size(listed: int, units: int, live: int = 0, ended: int = 0) -> int:
    """Estimates the bytes of all shards of a source. `listed`: bytes of the records of all units. `live`:
    bytes of the cached shards, in which `ended` units end."""
    return units * live // ended if ended else int(listed / _FILLED) + units * _PER_UNIT


def describe_epoch(limit: int, held: float, records: float | None, refresh: float) -> str:
    """Returns a sentence that describes an epoch. `held`: the number of records that fit into the `limit`.
    `records`: the number of records in the source, None if it is not known."""
    if records is not None and held >= records:
        return (
            f"the limit holds all of about {_about(records)} records: every epoch has all of them"
        )
    of = "" if records is None else f" of about {_about(records)}"
    share = "" if records is None else f" ({held / records:.0%})"
    parts = {0.25: "about a quarter", 0.5: "about half", 1.0: "up to all"}
    part = parts.get(refresh, f"about {refresh:.0%}")
    return (
        f"the limit of {approximate_size(limit)} holds about {_about(held)}{of} records{share}; an epoch "
        f"reads these records, and {part} of them are replaced each epoch, if the link allows"
    )


def _need(rules: Rules, size: int | None, shard: int) -> int:
    """Returns the smallest share with which a dataset reaches `first` and rotates, or with which a pinned
    set fits."""
    if rules.pin:
        return (size or 0) + 2 * shard
    first = -(-rules.first // int(_FILLED * rules.shard_size)) * shard
    return max(first + shard, LEAST_FOOTPRINTS * shard)


def _too_small(key: str, limit: int, needed: int, largest: Rules) -> LimitTooSmallError:
    reason = (
        "pinned, so all of it must fit" if largest.pin else "room for grow.first and for rotation"
    )
    lower = "" if largest.pin else "; or lower cache.shard_size or grow.first"
    return LimitTooSmallError(
        f"{key}: found {limit} bytes ({approximate_size(limit)}), expected at least "
        f"{-(-needed // _MIB)}MiB ({largest.name}: {reason}){lower}"
    )


def _about(count: float) -> str:
    """Returns a number with two significant digits."""
    return f"{int(float(f'{max(count, 0):.2g}')):,}"
