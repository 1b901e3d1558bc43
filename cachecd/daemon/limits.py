"""The limit of a configuration in bytes, and whether it will do."""

from __future__ import annotations

from collections.abc import Mapping

from cachecd.config import Config
from cachecd.daemon.identities import identity_of, rules_of
from cachecd.daemon.start import Start
from cachecd.disk.filesystem import limit_bytes
from cachecd.policy import events as ev
from cachecd.policy.fit import refuse_small_limit, set_size
from cachecd.policy.values import Rules


def limit_of(config: Config) -> int:
    """Returns `cache.limit` in bytes. LimitTooSmallError: the datasets need more. DiskError."""
    return resolve(config)[0]


def resolve(
    config: Config, sizes: Mapping[str, int] | None = None
) -> tuple[int, tuple[Rules, ...]]:
    """Returns `cache.limit` in bytes and the rules of every dataset. `sizes`: the bytes of the shards of
    pinned datasets, where they are known. LimitTooSmallError, DiskError."""
    limit = limit_bytes(config.cache.limit, config.cache.dir)
    names = {name: identity_of(dataset).name() for name, dataset in config.datasets.items()}
    rules = rules_of(config, limit, names)
    refuse_small_limit(limit, rules, sizes or {})
    return limit, rules


def known_sizes(config: Config, found: Start) -> dict[str, int]:
    """Returns the bytes of the shards of pinned datasets that were listed before: as measured if at least
    half of the units are cached, else as listed if records are objects as they are."""
    sizes = {}
    shards = {
        each.generation: [shard.facts for shard in each.shards if shard.status == "live"]
        for each in found.events
        if isinstance(each, ev.GenerationFound)
    }
    for name, generation in found.configured.items():
        dataset, table = config.datasets[name], found.listings[name].table
        if not (dataset.pin and table.completed):
            continue
        live = sum(facts.allocated for facts in shards[generation])
        ended = sum(facts.ended for facts in shards[generation])
        as_they_are = dataset.source.format == "files" and not dataset.source.join
        if 2 * ended >= len(table) > 0:
            sizes[name] = set_size(0, len(table), live, ended)
        elif as_they_are and not dataset.transform:
            sizes[name] = set_size(table.num_bytes, len(table))
    return sizes
