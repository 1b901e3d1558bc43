"""A dataset of which most records contradict the schema that its first record decided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cachecd import events as ev
from cachecd.contradictions import ENOUGH, Contradictions
from cachecd.model import MISFIT, Outcome, SetAside, ShardId
from cachecd.status import document
from tests.units import mixed
from tests.world import World, granted, world

GREY = f"{MISFIT}: feature 'image': record has uint8[8, 8, 3], the schema says uint8[8, 8, 1]"


def work(w: World, odd: float, until: int = 10_000) -> int:
    """Has shards made of which this share of the units contradicts; how many units were looked at."""
    looked_at = 0
    while looked_at < until and (w.publishing or w.making):
        if w.publishing:
            w.publish(min(w.publishing))
            continue
        shard = min(w.making)
        units = w.making[shard].units
        looked_at += len(units)
        bad = [u for u in units if u.unit % 100 < odd * 100]
        asides = tuple(SetAside(u.unit, u.key, GREY) for u in bad)
        good = replace(w.making[shard], units=tuple(u for u in units if u not in bad))
        made = mixed(good) if good.units else Outcome(0, 0, 0, 0, 0, 1.0)
        w.make(shard, replace(made, set_aside=asides))
    return looked_at


def stopped(w: World) -> str:
    return str(document(w.state, {}, w.now)["datasets"]["train"]["stopped"])


@pytest.mark.parametrize("odd", [0.1, 0.4])
def test_a_minority_is_set_aside_and_the_rest_is_leased(odd: float):
    w = world(shards=200, units=400)
    work(w, odd)
    dataset = w.state.datasets["train"]
    assert dataset.whole
    assert not stopped(w)
    assert dataset.plan.num_aside == odd * 400
    granted(w.acquire("train", "job", 0))


def test_where_most_contradict_ingest_stops_early_and_says_what_both_schemas_have():
    w = world(shards=400, units=1000)
    looked_at = work(w, 0.9)
    assert ENOUGH <= looked_at < 2 * ENOUGH
    assert not w.making
    assert not w.state.datasets["train"].whole
    said = stopped(w)
    assert "uint8[8, 8, 3], the schema says uint8[8, 8, 1]" in said
    assert "raise datasets.train.generation" in said
    reply = w.acquire("train", "job", 0)
    assert isinstance(reply, ev.ReplyRefused)
    assert (reply.code, reply.message) == ("contradicted", said)


def test_a_small_dataset_is_judged_once_all_of_it_was_looked_at():
    w = world(shards=20, units=12)
    first = min(w.making)
    units = w.making[first].units
    asides = tuple(SetAside(u.unit, u.key, GREY) for u in units[1:])
    w.make(first, replace(mixed(replace(w.making[first], units=units[:1])), set_aside=asides))
    assert not stopped(w), "others are still to come"
    work(w, 1.0)
    assert "most records contradict" in stopped(w)


def test_after_a_restart_it_is_stopped_still():
    w = world(shards=400, units=1000)
    work(w, 0.9)
    w.restart()
    dataset = w.state.datasets["train"]
    dataset.found_aside(w.rows.set_aside("train"))
    assert "most records contradict" in dataset.contradicted


def test_what_is_cached_counts_after_a_restart_and_odd_newcomers_do_not_stop_it():
    w = world(shards=400, units=300)
    work(w, 0.0)
    w.restart()
    dataset = w.state.datasets["train"]
    dataset.found_aside(w.rows.set_aside("train"))
    w.sources["train"].append([w.sources["train"].unit(0).size] * 100)
    w.feed(ev.Listed("train", complete=True))
    while w.making:
        units = w.making[shard := min(w.making)].units
        asides = tuple(SetAside(u.unit, u.key, GREY) for u in units)
        w.make(shard, Outcome(0, 0, 0, 0, 0, 1.0, set_aside=asides))
    assert dataset.plan.num_aside == 100
    assert not dataset.contradicted
    granted(w.acquire("train", "job", 0))


def test_where_shards_were_evicted_what_was_set_aside_before_says_nothing():
    doubts = Contradictions()
    doubts.found([SetAside(n, f"{n}", GREY) for n in range(100)], held=50, evicted=True)
    assert not doubts.suspected


def test_units_set_aside_for_other_reasons_contradict_nothing():
    doubts = Contradictions()
    doubts.made(1, [SetAside(n, f"{n}", "decode_image raised OSError") for n in range(100)])
    assert not doubts.suspected


def test_a_job_that_holds_an_epoch_gets_it_again_though_ingest_has_stopped():
    w = world(shards=400, units=1000, first=1)
    w.make(ShardId("train", 1))
    w.publish(ShardId("train", 1))
    lease = granted(w.acquire("train", "job", 0, rank=0, world=2))
    work(w, 1.0)
    assert granted(w.acquire("train", "job", 0, rank=1, world=2)) == lease
    assert isinstance(w.acquire("train", "job", 1, rank=0, world=2), ev.ReplyRefused)
