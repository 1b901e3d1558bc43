"""Keys that a reload may change, and keys that need a restart."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cachecd.config import Config
from cachecd.daemon.service import _needs_restart
from cachecd.daemon.workers import lister_bounds, worker_setup
from cachecd_client import resources
from tests.e2e.daemons import Daemon, file_source, wait_until


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
def test_key_that_needs_a_restart_is_named(sections, keys):
    assert _needs_restart(config(), config(**sections)) == keys


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_workers_and_listers_share_one_memory_limit(workers: int):
    given = config(sampler={"workers": workers})
    assert worker_setup(given).memory == resources.memory() // 2 // workers
    assert lister_bounds(given).memory == worker_setup(given).memory
    given = config(sampler={"workers": workers, "memory": "1GiB"})
    assert lister_bounds(given).memory == worker_setup(given).memory == 1 << 30


def test_signalled_daemon_has_the_new_number_of_workers(tmp_path: Path):
    file_source(tmp_path / "source", {f"{number}": b"x" for number in range(10)})
    train = {"source": {"url": f"file://{tmp_path}/source", "format": "files"}}
    with Daemon(tmp_path, {"train": train}, sampler={"workers": 4}) as served:
        served.start()
        for numbers in ((2,), (5,), (1, 3)):
            for workers in numbers:
                served.document["sampler"]["workers"] = workers
                served.write_config()
                reloads = served.said().count("configuration reloaded")
                os.kill(served.pid, signal.SIGHUP)
                wait_until(lambda: served.said().count("configuration reloaded") > reloads)  # noqa: B023
            wait_until(lambda: served.status()["sampler"]["alive"] == numbers[-1])  # noqa: B023
            assert served.status()["sampler"]["workers"] == numbers[-1]
        served.until_whole()
        assert served.terminate() == 0
