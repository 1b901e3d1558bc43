"""Turns the configuration into the rules of the policy, and checks that the limit suffices.

Each option that the policy uses has a field in Rules (policy/values.py) and a line in `rules_of`.
"""

from __future__ import annotations

from collections.abc import Mapping

from cachecd.config import Config
from cachecd.config.identity import directory_name, identity_of, split_of
from cachecd.disk.filesystem import total_bytes
from cachecd.errors import ConfigError
from cachecd.policy import events as ev
from cachecd.policy.fit import refuse_small_limit
from cachecd.policy.values import Rules
from cachecd.quantities import Percent, approximate_size

_BLOCK = 4096


def rules_of(config: Config, limit: int, generations: Mapping[str, str]) -> tuple[Rules, ...]:
    """Returns the rules of every dataset. `generations`: the name of each dataset's generation."""
    part = limit // len(config.datasets)
    return tuple(
        Rules(
            name=name,
            generation=generations[name],
            first=dataset.grow.first_within(min(part, dataset.limit or part)),
            shard_size=config.cache.shard_size,
            split=split_of(identity_of(dataset)),
            per_epoch=dataset.grow.per_epoch,
            wait=dataset.grow.wait,
            refresh=dataset.evict.refresh,
            pin=dataset.pin,
            limit=dataset.limit,
            seed=dataset.seed,
            streams=dataset.streams,
            awaits_classes=dataset.source.awaits_classes,
        )
        for name, dataset in config.datasets.items()
    )


def configured(
    config: Config, limit: int, generations: Mapping[str, str], boot: str, offline: bool
) -> ev.Configured:
    """Returns the event with the whole configuration. `boot` makes the names of leases unique across
    restarts."""
    rules, sampler = rules_of(config, limit, generations), config.sampler
    return ev.Configured(limit, rules, sampler.egress_limit, sampler.idle, _BLOCK, boot, offline)


def refuse_large_limit(config: Config, limit: int) -> None:
    """ConfigError if the file system of cache.dir is too small for `cache.limit`. DiskError. A start only
    warns (see `CacheLoop`), so that a cache on a smaller disk still serves its shards."""
    most = max(0, total_bytes(config.cache.dir) - config.cache.reserve_free)
    if limit > most:
        raise ConfigError(
            f"cache.limit: found {limit} bytes ({approximate_size(limit)}), expected at most {most} bytes "
            f"({approximate_size(most)}): the size of the file system of {config.cache.dir} minus "
            "cache.reserve_free"
        )


def resolve(
    config: Config, sizes: Mapping[str, int] | None = None
) -> tuple[int, tuple[Rules, ...]]:
    """Returns `cache.limit` in bytes, and the rules of every dataset. `sizes`: the bytes of all shards of
    each pinned dataset, if they are known. LimitTooSmallError, DiskError."""
    limit = config.cache.limit
    if isinstance(limit, Percent):
        limit = limit.of(total_bytes(config.cache.dir))
    names = {
        name: directory_name(identity_of(dataset)) for name, dataset in config.datasets.items()
    }
    rules = rules_of(config, limit, names)
    refuse_small_limit(limit, rules, sizes or {})
    return limit, rules
