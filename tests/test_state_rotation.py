"""Rotation over hundreds of epochs, by a clock of its own: what two jobs at their own pace make of it,
and what a holder that stays does to it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from cachecd import events as ev
from cachecd.model import ShardId
from cachecd.rules import DatasetRules
from cachecd.status import document
from tests.world import FOOTPRINT, UNIT, Units, World, granted, numbers, world

PER_SHARD = 20.0  # seconds in which the link brings what makes a shard
# Shards of three units, of which a limit of twelve footprints holds seventeen.
A_QUARTER = 4


@dataclass
class Job:
    """Takes an epoch every so many seconds; as trainers do, it has the next set before it leaves one."""

    name: str
    seconds: float
    epoch: int = 0
    lease: str = ""
    next_at: float = 0.0

    def step(self, w: World) -> bool:
        """Whether an epoch began."""
        if w.now < self.next_at:
            return False
        following = granted(w.acquire("train", self.name, self.epoch))
        if self.lease:
            w.locks[self.lease].clear()
            w.feed(ev.LeaseUnheld(self.lease))
        self.lease, self.epoch, self.next_at = following, self.epoch + 1, w.now + self.seconds
        return True


@dataclass
class Seen:
    """What became of every shard, and how much each epoch retired against what the link did."""

    read: set[int] = field(default_factory=set)
    born: dict[int, float] = field(default_factory=dict)
    ages: dict[int, float] = field(default_factory=dict)
    retired: list[int] = field(default_factory=list)
    sealed: int = 0
    link_free_at: float = 0.0


def run(w: World, jobs: list[Job], until: float, per_shard: float = PER_SHARD) -> Seen:
    """From one happening to the next: the disk takes no time, the link `per_shard` seconds a shard."""
    seen, live = Seen(), w.state.datasets["train"].live
    while w.now < until:
        following = min(job.next_at for job in jobs)
        w.now = max(w.now, min(following, seen.link_free_at) if w.making else following)
        if w.making and w.now >= seen.link_free_at:
            w.make(min(w.making))
            w.publish(min(w.publishing))
            seen.sealed += 1
            seen.link_free_at = w.now + per_shard
        for job in jobs:
            before = {n for n, s in live.items() if s.retired}
            if job.step(w):
                seen.retired.append(len({n for n, s in live.items() if s.retired} - before))
                seen.read |= set(numbers(w, job.lease))
                seen.link_free_at = max(seen.link_free_at, w.now + per_shard)
        while w.unlinking:
            w.unlink(w.unlinking[0])
        for number in live.keys() - seen.born.keys():
            seen.born[number] = w.now
        for number in seen.born.keys() - live.keys() - seen.ages.keys():
            seen.ages[number] = w.now - seen.born[number]
    return seen


@pytest.mark.parametrize("lengths", [(60.0, 430.0), (35.0, 900.0)])
def test_two_jobs_at_their_own_pace_read_every_shard_before_it_goes_and_none_stays(lengths):
    w = world(shards=12, units=120)
    w.settle()
    jobs = [Job("short", lengths[0]), Job("long", lengths[1])]
    until = 200 * max(lengths[0], lengths[1] / 8)
    seen = run(w, jobs, until)
    assert jobs[0].epoch >= 199
    assert len(seen.ages) > 20, "nothing rotates"
    assert seen.ages.keys() <= seen.read, "a shard went that nobody had read"
    # With each epoch of the long job at least a shard goes, and there are seventeen.
    longest = 18 * (max(lengths) + 12 * PER_SHARD)
    assert max(seen.ages.values()) < longest
    assert all(until - born < longest for n, born in seen.born.items() if n not in seen.ages)
    assert sum(seen.retired) <= seen.sealed + A_QUARTER, "more is retired than the link brings"
    assert max(seen.retired) <= A_QUARTER


def test_rotation_grows_to_what_the_link_can_do_and_never_beyond():
    slow, fast = world(shards=12, units=120), world(shards=12, units=120)
    for w in (slow, fast):
        w.settle()
    crept = run(slow, [Job("job", 100.0)], 6_000.0, per_shard=50.0)
    ran = run(fast, [Job("job", 100.0)], 6_000.0, per_shard=10.0)
    assert sum(crept.retired) <= crept.sealed + A_QUARTER
    assert sum(crept.retired[-20:]) >= 20, "half of what the link could do"
    assert max(ran.retired) == A_QUARTER, "a quarter of the capacity is what refresh allows"
    assert ran.retired[-10:] == [A_QUARTER] * 10, "and a fast link does it every epoch"


def test_a_holder_that_stays_stops_rotation_and_status_names_it():
    w = world(shards=12, units=120)
    w.settle()
    stays = granted(w.acquire("train", "stays", 0))
    job = Job("goes on", 100.0)
    seen = run(w, [job], 20_000.0)
    assert job.epoch >= 199
    assert 0 < sum(seen.retired) <= A_QUARTER, "as long as it stays"
    assert not seen.ages
    (named,) = [found for found in document(w.state, {}, w.now)["leases"] if found["retired_bytes"]]
    assert (named["job"], named["lease"], named["age_s"]) == ("stays", stays, 20_000.0)
    held = {ShardId("train", n) for n in numbers(w, stays)}
    assert held <= set(w.disk)
    w.drop(stays)
    after = run(w, [job], w.now + 3000.0)
    assert len(after.ages) > 10, "rotation goes on once it has left"


def test_two_datasets_under_one_limit_both_rotate_however_late_one_of_them_begins():
    early = DatasetRules("early", "1", first=3 * UNIT)
    late = DatasetRules("late", "1", first=3 * UNIT)
    w = World(
        14 * FOOTPRINT, {early: Units([UNIT] * 100), late: Units([UNIT] * 100)}, unlisted={"late"}
    )
    w.settle()
    w.listed |= {"late"}
    w.sources["late"].complete = True
    w.feed(ev.Listed("late", complete=True))
    w.settle()
    oldest = dict.fromkeys(("early", "late"), 0)
    leases: dict[str, str] = {}
    for epoch in range(40):
        for name in oldest:
            following = granted(w.acquire(name, "job", epoch))
            if name in leases:
                w.locks[leases[name]].clear()
                w.feed(ev.LeaseUnheld(leases[name]))
            leases[name] = following
            w.settle()
            oldest[name] = numbers(w, following)[0]
    assert min(oldest.values()) > 12, f"a shard stays for ever: {oldest}"


def test_a_lease_that_outlives_the_daemon_counts_as_what_was_said_of_it():
    w = world(shards=8, units=900)
    w.reads_at_once = False
    w.work(1000)
    lease = granted(w.acquire("train", "job", 0))
    w.deliver(lease, 500)
    w.restart()
    w.locks[lease] = {0}
    w.let_go(lease)
    live = w.state.datasets["train"].live
    assert lease not in w.manifests
    assert not any(shard.read for shard in live.values())
    w.acquire("train", "job", 1)
    assert not w.state.datasets["train"].live.num_retired
