"""What a reload may change, and what takes a restart."""

from __future__ import annotations

from typing import Any

import pytest

from cachecd.config import Config
from cachecd.daemon.service import _needs_restart


def config(**sections: Any) -> Config:
    source = {"url": "s3://bucket/train/", "format": "files"}
    document = {
        "version": 1,
        "cache": {"dir": "/var/lib/cachecd", "limit": "500GiB"},
        "datasets": {"train": {"source": source}},
    }
    for section, keys in sections.items():
        name, _, dataset = section.partition("_")
        of = document["datasets"][dataset] if dataset else document.setdefault(name, {})
        of.update(keys)
    return Config.model_validate(document)


@pytest.mark.parametrize(
    "sections",
    [
        {"cache": {"limit": "100GiB", "reserve_free": "1GiB", "window": "1GiB"}},
        {"datasets_train": {"grow": {"first": "2GiB"}, "evict": {"refresh": 0.5}, "limit": "9GiB"}},
        {"sampler": {"egress_limit": "1TiB", "idle": "1h"}},
        {"sampler": {"workers": 7, "connections": 8, "bandwidth": "1MB/s"}},
    ],
)
def test_limits_growth_pauses_and_workers_are_reloaded(sections):
    assert _needs_restart(config(), config(**sections)) == []


@pytest.mark.parametrize(
    ("sections", "keys"),
    [
        ({"cache": {"shard_size": "1MiB"}}, ["cache.shard_size"]),
        ({"sampler": {"unit_timeout": "7s"}}, ["sampler.unit_timeout"]),
        ({"datasets_train": {"generation": 2}}, ["datasets.train"]),
    ],
)
def test_key_that_takes_a_restart_is_named(sections, keys):
    assert _needs_restart(config(), config(**sections)) == keys
