"""Why nothing is fetched now, as one word, and its seconds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cachecd.daemon import pauses as module
from cachecd.daemon.ingest import Ingest
from cachecd.daemon.pauses import BUSY, REASONS, Pauses, pause_of
from cachecd.daemon.timeline import Timeline
from cachecd.model import StageSeconds
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.sampler.messages import Effort
from tests.policy.cache import Cache, a_full_cache, a_whole_cache


def pause(cache: Cache) -> str:
    return pause_of(cache.policy, cache.policy.datasets["a"], cache.now)


def test_a_whole_dataset_pauses_for_no_reason():
    assert pause(a_whole_cache()) == ""


def test_a_full_cache_waits_for_room():
    assert pause(a_full_cache()) == "room"


def test_a_dataset_without_a_listing_waits_for_it():
    assert pause(Cache()) == "listing"


def test_a_dataset_whose_shard_is_being_made_does_not_pause():
    cache = Cache()
    cache.directory(next(iter(cache.policy.room.by_id))).list(sorted(cache.sources["a"]), 1 << 30)
    cache.send(cache.listed(next(iter(cache.policy.room.by_id))))
    while not cache.under_way(do.GrantShard):
        for command in list(cache.pending):
            cache.pending.remove(command)
            for event in cache.carry_out(command):
                cache.send(event)
    assert pause(cache) == BUSY


@pytest.mark.parametrize(
    ("bounds", "reason"), [({"egress_limit": 1}, "egress"), ({"idle": 60.0}, "idle")]
)
def test_a_bound_of_the_configuration_is_the_reason(bounds: dict[str, float], reason: str):
    cache = a_full_cache()
    cache.configure(**bounds)
    cache.send(ev.Measured(0, 100_000, fetched=10))
    cache.pass_time(1.0)
    cache.send(ev.Measured(0, 100_000, fetched=10))
    cache.now += 100.0
    assert pause(cache) == reason


def test_a_daemon_that_runs_offline_does_not_pause():
    cache = a_full_cache()
    cache.configure(offline=True)
    assert pause(cache) == ""


def test_a_disk_that_refuses_is_the_reason():
    cache = a_full_cache()
    cache.send(ev.Measured(0, 100_000, refused="EIO"))
    assert pause(cache) == "disk"


def test_a_source_that_cannot_be_read_is_a_pause_of_the_link():
    cache = a_full_cache()
    dataset = cache.policy.datasets["a"]
    dataset.source.begin(cache.now, "cannot connect to the store")
    assert pause(cache) == "link"


def test_seconds_are_added_while_no_worker_works():
    cache, pauses = a_full_cache(), Pauses()
    pauses.tick(cache.policy, (), 10.0)
    pauses.tick(cache.policy, (), 12.0)
    pauses.tick(cache.policy, {"a"}, 15.0)
    pauses.tick(cache.policy, (), 16.0)
    assert pauses.seconds == {**dict.fromkeys(REASONS, 0.0), "room": 3.0}


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A policy whose `datasets` map names to the result of `pause_of`."""
    monkeypatch.setattr(module, "pause_of", lambda policy, dataset, now: dataset)
    return SimpleNamespace(datasets={})


def test_full_dataset_does_not_pause_while_another_dataset_is_busy(policy: Any):
    pauses = Pauses()
    policy.datasets = {"a": "room", "b": ""}
    pauses.tick(policy, (), 10.0)
    pauses.tick(policy, {"b"}, 11.0)
    policy.datasets = {"a": "room", "b": BUSY}
    pauses.tick(policy, (), 13.0)
    assert pauses.seconds == dict.fromkeys(REASONS, 0.0)


def test_seconds_of_several_reasons_count_once(policy: Any):
    pauses = Pauses()
    policy.datasets = {"a": "room", "b": "listing", "c": "link", "d": ""}
    pauses.tick(policy, (), 10.0)
    pauses.tick(policy, (), 13.0)
    policy.datasets["c"] = "room"
    pauses.tick(policy, (), 15.0)
    assert pauses.seconds == {**dict.fromkeys(REASONS, 0.0), "link": 3.0, "listing": 2.0}


def test_a_worker_that_waits_counts_for_its_share():
    ingest = Ingest(Timeline(), workers=4)
    stages = {"fetch": StageSeconds(0.1, 2.0, 0)}
    ingest.add("a", Effort(7, stages, {"throttled": 2.0, "no reason": 9.0}))
    ingest.add("a", Effort(8, stages, {"throttled": 1.0}))
    assert ingest.pauses.seconds == {**dict.fromkeys(REASONS, 0.0), "throttled": 0.75}
    assert ingest.stages("a")["fetch"].wall_s == 4.0


def test_a_dataset_on_which_a_worker_works_does_not_pause_in_this_tick():
    cache, ingest = a_full_cache(), Ingest(Timeline())
    ingest.tick(cache.policy, 1.0)
    ingest.add("a", Effort(7, {}))
    ingest.tick(cache.policy, 3.0)
    assert ingest.pauses.seconds["room"] == 0.0
    ingest.tick(cache.policy, 4.0)
    assert ingest.pauses.seconds["room"] == 1.0
