"""What a start checks before it makes anything on disk, and the figures the policy is given."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cachecd import generations
from cachecd.config import Config, DatasetConfig
from cachecd.daemon.workers import worker_memory
from cachecd.disk.filesystem import total_bytes
from cachecd.errors import LimitTooSmallError
from cachecd.executors.lister import Lister
from cachecd.executors.process import Bounds
from cachecd.ledger import METADATA_SLACK, footprint
from cachecd.model import LANES
from cachecd.quantities import Percent, approximate_size
from cachecd.rules import AWAITS_CLASSES, DatasetRules

# An empty catalog with its write-ahead log, the lock file and the directories.
_EMPTY_CACHE = 512 << 10
# The share of a shard that is records. The rest is its sidecar, and room that the next record did not
# fit into: with records that are large for a shard, or of a few bytes, it is more than this allows for,
# and it is the grant that is refused, with its own figure.
_FILLED = 0.85
# The keys of a source that decide the names of its units.
_NAMES = {"url", "format", "manifest", "array", "reader", "options"}


@dataclass(frozen=True, slots=True)
class Figures:
    """The configuration's sizes in bytes, once the disk is known."""

    limit: int
    datasets: tuple[DatasetRules, ...]


def figures(config: Config) -> Figures:
    """Resolves percentages and defaults; LimitTooSmallError gives the limit that would do."""
    limit = config.cache.limit
    if isinstance(limit, Percent):
        limit = limit.of(total_bytes(config.cache.dir))
    share = limit // len(config.datasets)
    rules = tuple(_rules(name, dataset, share) for name, dataset in config.datasets.items())
    needed = minimum(rules, config.cache.shard_size)
    if limit < needed:
        raise LimitTooSmallError(
            f"cache.limit is {limit} bytes ({approximate_size(limit)}), but this configuration needs "
            f"at least {needed} ({approximate_size(needed)}): room for grow.first of every dataset, "
            "for replacing a shard within evict.refresh, and for the catalog; raise cache.limit, or "
            "lower cache.shard_size or grow.first"
        )
    return Figures(limit, rules)


def minimum(rules: tuple[DatasetRules, ...], shard_size: int) -> int:
    """The smallest limit under which every dataset reaches `first` and can rotate."""
    return METADATA_SLACK + _EMPTY_CACHE + _shards(rules, shard_size, footprint(shard_size))


def least_for_shards(rules: tuple[DatasetRules, ...], shard_size: int) -> int:
    """What an index of whatever length leaves to the shards, so that they reach `first` and rotate; the
    half of a shard is for the catalog, which grows with them."""
    return _shards(rules, shard_size, footprint(shard_size) // 2)


def _shards(rules: tuple[DatasetRules, ...], shard_size: int, more: int) -> int:
    """What shards that reach `first` and rotate take on the disk, and so much `more` a dataset."""
    shard = footprint(shard_size)
    total = 0
    for dataset in rules:
        if dataset.pin:
            total += 2 * shard  # what it really needs is known once it is listed
        else:
            # Rotation replaces at least one shard, and at most `refresh` of the capacity.
            one_in = -(-shard // dataset.refresh)
            first = -(-dataset.first // int(_FILLED * shard_size)) * shard
            total += int(max(first, one_in)) + more
    return total


def _rules(name: str, dataset: DatasetConfig, share: int) -> DatasetRules:
    return DatasetRules(
        name=name,
        generation=generation_of(dataset),
        first=dataset.grow.first_within(min(share, dataset.limit or share)),
        per_epoch=dataset.grow.per_epoch,
        wait=dataset.grow.wait,
        refresh=dataset.evict.refresh,
        pin=dataset.pin,
        limit=dataset.limit,
        seed=dataset.seed,
        awaits=AWAITS_CLASSES if dataset.source.awaits_classes else "",
        interleave=LANES if dataset.source.is_seekable else 1,
        source=dataset.source.name,
        held_out_of=name.removesuffix("-eval") if dataset.held_out else "",
    )


def generation_of(dataset: DatasetConfig) -> str:
    """Names what decides a record's content: the source, the transform's names, `generation`, and the
    class names, if they are configured."""
    source = dataset.source
    steps = [[step.name, step.argument] for step in dataset.transform]
    decides = [listing_of(dataset), steps, dataset.generation]
    decides += [source.classes, source.join, source.columns]
    held_out: dict[str, Any] | None = None
    if (split := dataset.split) is not None:
        # Both sides alike: what one side trains on is what the other does not hold out. Units are held out
        # by their names, and the same object has another name under another URL.
        of = [source.model_dump(mode="json", include=_NAMES), source.listed_pattern]
        held_out = {**split.model_dump(mode="json"), "of": of}
    return generations.configured(dataset.generation, decides, held_out)


def listing_of(dataset: DatasetConfig) -> str:
    """Names what decides a listing and the classes found in it: URL, format, label pattern, `match`, `skip`
    and the first pattern of `join`, what is said of arrays, and which units the dataset takes. Not the
    configured classes: they may be added in the middle of a listing. Nor the endpoint: a bucket is the same
    bucket by whatever host name it is reached, and the environment may name the host instead."""
    source, label, split = dataset.source, dataset.source.label, dataset.split
    names = source.model_dump(mode="json", include={*_NAMES, "match", "skip"})
    names["join"] = source.listed_pattern
    names["label"] = label and label.model_dump(mode="json", include={"pattern", "manifest"})
    names["split"] = split and [split.model_dump(mode="json"), dataset.held_out]
    names["partition"] = dataset.partition and dataset.partition.model_dump(mode="json")
    # The order of `options` means nothing, and that of `array.arrays` does.
    return json.dumps(names, sort_keys=bool(source.reader))


def lister_of(config: Config, name: str = "") -> Lister:
    """What lists the sources; `name` names its processes."""
    sampler = config.sampler
    bounds = Bounds(worker_memory(config), sampler.unit_timeout)
    return Lister(sampler.connections, sampler.python, name, bounds, path=sampler.path)
