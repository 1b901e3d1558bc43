"""The limit of a configuration in bytes, and whether it will do."""

from __future__ import annotations

from collections.abc import Mapping

from cachecd.config import Config
from cachecd.daemon.identities import identity_of, rules_of
from cachecd.disk.filesystem import limit_bytes
from cachecd.policy.fit import refuse_small_limit
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
