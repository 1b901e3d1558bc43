"""What may be fetched is bounded, or pauses while nobody trains; training goes on with what there is."""

from __future__ import annotations

from cachecd import events as ev
from cachecd.restraint import Restraint
from tests.world import FOOTPRINT, UNIT, World, granted, numbers, world

SHARD = 3 * UNIT  # what a shard of these tests takes of the source


def bounded(shards: int = 8, **rules) -> World:
    """A world of which three shards' bytes may be fetched."""
    w = world(shards=shards, units=60, workers=1, **rules)
    w.restraint.egress_limit = 3 * SHARD
    return w


def made(w: World) -> list[int]:
    return sorted(shard.number for shard in w.disk)


def test_when_the_egress_limit_is_reached_nothing_more_is_fetched_and_leases_go_on():
    w = bounded()
    w.settle()
    assert made(w) == [1, 2, 3]
    assert "sampler.egress_limit" in w.state.rests(w.now)
    for epoch in range(3):
        lease = granted(w.acquire("train", "job", epoch))
        assert numbers(w, lease) == [1, 2, 3]
        w.drop(lease)
        w.settle()


def test_the_egress_limit_holds_over_restarts():
    w = bounded()
    w.settle()
    w.restart()
    w.settle()
    assert made(w) == [1, 2, 3]
    w.state.reconfigure(w.limit, (), Restraint(egress_limit=5 * SHARD))
    w.tick()
    w.settle()
    assert made(w) == [1, 2, 3, 4, 5]


def test_with_less_than_first_a_job_trains_on_what_was_fetched():
    w = bounded(first=6 * SHARD)
    w.settle()
    assert numbers(w, granted(w.acquire("train", "job", 0))) == [1, 2, 3]


def test_with_nothing_fetched_a_job_is_refused_and_told_what_to_raise():
    w = world(units=60)
    w.settle()
    w.state.reconfigure(w.limit, (), Restraint(egress_limit=1))
    for shard in list(w.disk):
        w.found_corrupt(shard)
    w.settle()
    reply = w.acquire("train", "job", 0)
    assert isinstance(reply, ev.ReplyRefused)
    assert "no more will come" in reply.message
    assert "sampler.egress_limit" in reply.message


def test_at_the_egress_limit_nothing_is_retired_as_nothing_would_replace_it():
    w = bounded(shards=4)
    w.settle()
    w.metadata = 2 * FOOTPRINT  # the cache is full
    w.measure()
    for epoch in range(3):
        w.drop(granted(w.acquire("train", "job", epoch)))
        w.settle()
    assert made(w) == [1, 2, 3]


def test_what_failed_shards_have_fetched_counts_too():
    w = bounded()
    shard = min(w.making)
    w.feed(ev.ShardProgressed(shard, 3 * SHARD))
    w.fail(shard, "source")
    w.tick(120.0)
    assert not w.making


def test_without_a_lease_for_long_nothing_is_fetched_until_one_is_asked_for():
    w = world(shards=8, units=60, workers=1)
    w.restraint.idle = 600.0
    w.work(2)
    before = len(w.disk)
    w.tick(601.0)
    w.settle()
    assert len(w.disk) <= before + 1, "what was under way is finished"
    assert "sampler.idle" in w.state.rests(w.now)
    rested = len(w.disk)
    w.tick(3600.0)
    w.settle()
    assert len(w.disk) == rested
    lease = granted(w.acquire("train", "job", 0))
    w.settle()
    assert len(w.disk) > rested
    # As long as somebody has it, and for the time after its end.
    w.tick(3600.0)
    assert not w.state.rests(w.now)
    w.drop(lease)
    w.tick(500.0)
    assert not w.state.rests(w.now)
    w.tick(101.0)
    assert w.state.rests(w.now)
