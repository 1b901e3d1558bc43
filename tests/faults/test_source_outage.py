"""A source that is gone for an hour, by a scripted clock: it costs freshness and nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from cachecd import events as ev
from cachecd.model import Outcome, SetAside, ShardId
from cachecd.rules import DatasetRules
from cachecd.second_chance import FIRST, LONGEST, SecondChances
from cachecd.status import document
from tests.units import full
from tests.world import FOOTPRINT, SHARD_SIZE, Units, World

UNIT = SHARD_SIZE // 4
ATTEMPT = 20.0  # seconds until a worker gives up on a store of which nothing can be read
WORKERS = 4


def world(shards: int = 12, units: int = 400, **rules: object) -> World:
    rule = DatasetRules("train", "g", **{"first": SHARD_SIZE, **rules})  # type: ignore[arg-type]
    return World(shards * FOOTPRINT, {rule: Units([UNIT] * units)}, workers=WORKERS)


class Link:
    """Makes shards, a second at a time, unless `down`. `started`: when a worker was sent to the store."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.down = False
        self.started: list[float] = []
        self._since: dict[ShardId, float] = {}

    def second(self) -> None:
        w = self.world
        w.tick(1.0)
        while w.publishing:
            w.publish(min(w.publishing))
        for shard in sorted(w.making):
            if shard not in self._since:
                self._since[shard] = w.now
                self.started.append(w.now)
            took = w.now - self._since[shard]
            if self.down and took >= ATTEMPT:
                del self._since[shard]
                w.fail(shard, "source")
            elif not self.down and took >= 2:
                del self._since[shard]
                w.feed(ev.ShardProgressed(shard, 1))
                w.make(shard)
        while w.unlinking:
            w.unlink(w.unlinking[0])

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.second()


def epoch(w: World, number: int) -> tuple[int, ...]:
    """The shards of the next epoch's set, held for a moment."""
    reply = w.acquire("train", "job", number)
    assert isinstance(reply, ev.ReplyGranted), reply
    lease = w.manifests[reply.lease]
    w.drop(reply.lease)
    return tuple(n for first, last in lease.shards for n in range(first, last + 1))


@pytest.mark.parametrize("full_cache", [False, True], ids=["growing", "at the limit"])
def test_a_source_down_for_an_hour_costs_nothing_but_freshness(full_cache: bool):
    w = world() if full_cache else world(shards=300)
    link = Link(w)
    link.seconds(60 if full_cache else 10)
    before = epoch(w, 0)
    link.seconds(30)
    before = epoch(w, 1)  # at the limit, this retires what the link would have refilled
    lost = w.state.datasets["train"].last_retired // FOOTPRINT + 1 if full_cache else 0
    link.down = True
    went_down = w.now
    link.seconds(90)  # what was under way fails
    number, sets = 2, []
    while w.now < went_down + 3600:
        sets.append(epoch(w, number))  # training goes on, epoch after epoch
        number += 1
        link.seconds(120)
    assert len(set(sets)) == 1, "the set neither shrinks nor changes while nothing can come"
    assert len(sets[0]) >= len(before) - lost
    assert w.set_aside == []

    found = document(w.state, {}, w.now)["datasets"]["train"]
    assert found["stopped"] == "it failed"
    assert found["stopped_for_s"] == pytest.approx(w.now - went_down, abs=ATTEMPT + 5)

    # One worker at a time looks, about every 80 s at the end: no hammering.
    assert len([s for s in link.started if s > went_down + ATTEMPT]) < 3600 / 60 + 10

    link.down = False
    recovered, known = w.now, len(w.disk)
    while len(w.disk) == known or document(w.state, {}, w.now)["datasets"]["train"]["stopped"]:
        assert w.now <= recovered + 60 + 3, "ingest resumes within a minute"
        if full_cache:
            epoch(w, number)
            number += 1
        link.second()
    link.seconds(10)
    assert len(w.making) + len(w.publishing) == WORKERS or full_cache  # all of them again


def test_failures_of_one_incident_pause_ingest_once_however_many_workers_there_are():
    w = world(shards=100)
    link = Link(w)
    link.seconds(10)
    link.down = True
    while not w.state.datasets["train"].source.reason:
        link.second()
    assert w.state.datasets["train"].source.until <= w.now + 1.0
    for shard in list(w.making):
        w.fail(shard, "source")
    assert w.state.datasets["train"].source.until <= w.now + 1.0


def test_a_blip_does_not_say_that_it_lasts_once_something_comes():
    w = world(shards=100)
    first = min(w.making)
    for shard in list(w.making):
        w.fail(shard, "source")
    w.tick(5)
    assert w.state.datasets["train"].source.reason == "it failed"
    w.feed(ev.ShardProgressed(first, 1))
    assert w.state.datasets["train"].source.reason == ""
    assert document(w.state, {}, w.now)["datasets"]["train"]["stopped_for_s"] == 0


def aside(unit: int, *, passing: bool = True) -> SetAside:
    return SetAside(unit, f"key-{unit}", "403", passing)


def part(w: World, shard: ShardId, *bad: SetAside) -> Outcome:
    """All of the shard's units but these."""
    return dataclasses.replace(full(w.making[shard]), set_aside=bad)


def test_a_unit_set_aside_for_a_reason_that_may_pass_is_tried_again_after_an_hour():
    w = world(shards=100, units=8)
    shard = min(w.making)
    refused, undecodable = (u.unit for u in w.making[shard].units[:2])
    w.make(shard, part(w, shard, aside(refused), aside(undecodable, passing=False)))
    w.settle()
    assert w.state.datasets["train"].whole
    w.tick(FIRST - 60)
    assert not w.making
    w.tick(61)
    [again] = w.making.values()
    assert [u.unit for u in again.units] == [refused]
    w.settle()
    assert w.state.datasets["train"].whole
    w.tick(LONGEST)
    assert not w.making
    assert sum(1 for records in w.disk.values() for unit, _ in records if unit == refused) == 4


def test_a_pinned_set_is_tried_again_only_after_a_listing():
    w = world(shards=100, units=8, pin=True)
    shard = min(w.making)
    refused = w.making[shard].units[0].unit
    w.make(shard, part(w, shard, aside(refused)))
    w.settle()
    w.tick(LONGEST)
    assert w.state.datasets["train"].whole  # the set of a running evaluation does not change
    assert not w.making
    w.feed(ev.Listed("train", complete=True, fresh=True))
    assert [[u.unit for u in a.units] for a in w.making.values()] == [[refused]]


def test_pauses_between_second_chances_double_up_to_a_day():
    chances, now, waits = SecondChances(pinned=False), 0.0, []
    for _ in range(8):
        chances.gave_up([aside(3)], now)
        began = now
        while not (due := chances.take(now)):
            now += FIRST / 4
        assert due == (3,)
        assert chances.take(now) == ()
        waits.append((now - began) / FIRST)
    assert waits == [1, 2, 4, 8, 16, 24, 24, 24]


def test_a_unit_that_was_tried_in_vain_keeps_no_other_waiting():
    chances = SecondChances(pinned=False)
    chances.gave_up([aside(3)], 0.0)
    assert chances.take(FIRST) == (3,)
    chances.gave_up([aside(3)], FIRST)  # due after two hours more
    chances.gave_up([aside(4)], FIRST + 1)
    assert chances.take(2 * FIRST) == ()
    assert chances.take(2 * FIRST + 1) == (4,)
    assert chances.take(3 * FIRST) == (3,)


def test_what_a_start_finds_set_aside_waits_for_the_source_to_be_there():
    chances = SecondChances(pinned=False)
    chances.found([aside(3), aside(4, passing=False), aside(5)])
    assert chances.take(LONGEST) == ()
    chances.listed(LONGEST)
    assert chances.take(LONGEST) == (3, 5)


def test_a_source_that_cannot_be_listed_costs_one_shard_at_most():
    """And rotation goes on if it can be read all the same."""
    w = world(shards=40)
    link = Link(w)
    for number in range(7):  # full, and rotating faster and faster
        link.seconds(200)
        epoch(w, number)
    link.seconds(200)
    before, at_once = len(w.disk), w.state.datasets["train"].last_retired // FOOTPRINT
    assert at_once > 3
    link.down = True
    w.feed(ev.ListingStopped("train", "access denied", down=True))
    sets = []
    for number in range(7, 11):
        sets.append(epoch(w, number))
        link.seconds(100)
    assert [len(found) for found in sets] == [before - 1] * 4
    link.down = False
    known = set(w.disk)
    for number in range(11, 15):
        link.seconds(200)
        epoch(w, number)
    assert len(set(w.disk) - known) > 4


def test_nothing_is_retired_while_nothing_may_be_fetched():
    """As offline, and while the daemon goes down."""
    w = world()
    for number in range(3):  # full, and rotating
        w.settle()
        rotating = epoch(w, number)
    w.settle()
    assert epoch(w, 3) != rotating
    w.settle()
    w.feed(ev.Draining())
    assert len({epoch(w, number) for number in range(4, 9)}) == 1
    assert not w.unlinking
