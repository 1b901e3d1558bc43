"""Single situations in the life of a cache, step by step: simulated.py carries out the commands."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest

from cachecd.model import StreamId
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.values import GenerationId
from tests.policy.cache import DAY, FOOTPRINT, A, Cache, a_full_cache, a_whole_cache
from tests.policy.workers import Directory, Object

# --- streams ---------------------------------------------------------------------------------------


def test_whole_dataset_has_each_record_once_and_stops():
    cache = a_whole_cache()
    records = [r[:3] for s in cache.disk.directories[A].live().values() for r in s.records]
    assert len(records) == len(set(records)) == 8
    assert not cache.workers, "a stream with nothing to feed is closed"


def test_supplement_retires_before_a_stream_goes_on():
    cache = Cache()
    cache.sources["a"]["003"] = Object(3, (4,), (True, 0))
    cache.list_all()
    cache.sources["a"]["003"] = Object(3, (4,))
    cache.list_all()
    cache.pass_time(2 * DAY)
    cache.list_all()
    assert 1 in cache.live(), "the supplement"
    cache.sources["a"]["new"] = Object(100, (4,))
    cache.directory(A).list(sorted(cache.sources["a"]), 1 << 30)
    cache.send(cache.listed(A))
    cache.run(but=(do.Unlink, do.MarkRetired))
    assert 8 not in cache.live(), "the next pass may come to what the supplement holds"
    cache.run()
    assert 1 not in cache.live()


def test_what_always_fails_is_tried_more_and_more_rarely():
    cache = Cache()
    cache.sources["a"]["003"] = Object(3, (4,), (True, 0))
    cache.list_all()
    cache.now = 1.0
    tries = []
    for day in range(1, 45):
        cache.directory(A).list(sorted(cache.sources["a"]), 1 << 30)
        cache.send(cache.listed(A))
        cache.run(but=(do.MakeSupplement,))
        tries += [day] * len(cache.under_way(do.MakeSupplement))
        cache.run()
        cache.now = 1.01 * day * DAY
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert gaps == [2, 3, 4, 5, 6, 7, 7, 7], "days; the first try was at the start"


@pytest.mark.parametrize(("passing", "deaths"), [(False, 2), (True, 3)])
def test_unit_in_hand_at_several_deaths_is_condemned(passing: bool, deaths: int):
    cache = Cache(limit=1000)
    cache.directory(A).list(sorted(cache.sources["a"]), 1 << 30)
    cache.send(cache.listed(A))
    for death in range(1, deaths + 1):
        while not cache.under_way(do.GrantShard):
            cache.pending[:] = [
                c for c in cache.pending if not [cache.send(e) for e in cache.carry_out(c)]
            ]
            cache.now += 100
            cache.send(ev.Tick())
        stream = cache.under_way(do.GrantShard)[0].stream
        cache.pending.clear()
        sent = cache.send(ev.StreamFailed(stream, "worker", "killed", 5, passing))
        is_open = any(isinstance(c, do.OpenStream) and not c.condemned for c in sent)
        assert is_open == (passing and death < deaths), (
            "at once, if it need not be the unit's fault"
        )
    cache.now += 100
    opened = [c for c in cache.send(ev.Tick()) if isinstance(c, do.OpenStream)]
    assert [condemned.unit for condemned in opened[0].condemned] == [5]


def test_refused_publish_sends_the_stream_back():
    cache = Cache()
    cache.directory(A).list(sorted(cache.sources["a"]), 1 << 30)
    cache.send(cache.listed(A))
    cache.run(but=(do.PublishShard,))
    publish = cache.under_way(do.PublishShard)[0]
    cache.pending.remove(publish)
    cache.send(ev.DiskRefused(publish, "no space left"))
    cache.run()
    cache.pass_time(5)
    assert cache.live() == [0, 2, 4, 6]


# --- growth, rotation, room --------------------------------------------------------------------------


def test_each_epoch_replaces_what_was_delivered():
    cache = a_full_cache(refresh=0.5, first=1)
    before, old = cache.live(), cache.epoch(0)
    lease = cache.epoch(1)
    cache.end(old)
    after = cache.live()
    assert after[0] > before[0], "the oldest went"
    cache.end(lease)


def test_retired_shard_stays_until_its_lease_ends():
    cache = a_full_cache(refresh=0.5, first=1)
    old = cache.epoch(0)
    oldest = cache.live()[0]
    cache.acquire(1)
    assert oldest not in cache.live()
    assert (oldest, 0) in cache.disk.directories[A].shards
    cache.end(old)
    assert (oldest, 0) not in cache.disk.directories[A].shards


def test_nothing_goes_while_the_egress_limit_is_reached():
    cache = a_full_cache(refresh=0.5, first=1)
    cache.configure(egress_limit=10)
    cache.send(ev.Measured(0, 100_000, fetched=10))
    before = cache.live()
    old = cache.epoch(0)
    cache.acquire(1)
    cache.end(old)
    assert cache.live() == before


def test_nothing_is_fetched_from_a_doubted_source():
    cache = Cache()
    cache.directory(A).list(sorted(cache.sources["a"]), 1 << 30)
    listed = cache.listed(A)
    cache.send(listed._replace(doubted=True, reason="most objects were rewritten: set generation"))
    cache.run()
    assert not cache.live()
    assert cache.acquire(0).reason == "most objects were rewritten: set generation"
    cache.send(listed)
    cache.run()
    assert cache.live()


def test_without_jobs_nothing_is_fetched_after_idle():
    cache = Cache()
    cache.configure(idle=60.0)
    cache.send(ev.Tick())
    cache.now = 61
    cache.list_all()
    assert not cache.live()
    cache.acquire(0)
    assert cache.live()


def test_nothing_is_begun_while_draining():
    cache = Cache()
    cache.send(ev.Draining())
    cache.list_all()
    assert not cache.live()


def test_lowered_limit_is_reached_from_epoch_to_epoch():
    cache = a_full_cache(first=1)
    cache.limit = 5 * FOOTPRINT
    cache.configure()
    lease = ""
    for epoch in range(6):
        old, lease = lease, cache.acquire(epoch).lease
        cache.hold(lease)  # and nothing is delivered
        cache.end(old)
    cache.end(lease)
    assert cache.used() <= cache.limit


def test_older_generation_is_leased_until_first_and_gives_its_room():
    cache = a_full_cache(first=30)
    two = GenerationId("a", "two")
    cache.rules["a"] = cache.rules["a"]._replace(generation="two")
    cache.disk.directories[two] = Directory("", 1000, cache.rules["a"])
    before = cache.live()
    cache.start()
    assert cache.disk.manifests[cache.acquire(0, "x").lease].generation == "one"
    assert cache.directory(two).shape is None, "it has no listing yet"
    for lease in list(cache.disk.manifests):
        cache.hold(lease)
        cache.end(lease)
    cache.list_all(two)
    assert cache.disk.manifests[cache.acquire(1, "x").lease].generation == "two"
    left = cache.live() if A in cache.disk.directories else []
    assert left == before[len(before) - len(left) :], "the oldest go first"


def start_another(cache: Cache, name: str) -> None:
    """Starts with another generation, which is listed and has its first shard."""
    generation = GenerationId("a", name)
    cache.rules["a"] = cache.rules["a"]._replace(generation=name)
    cache.disk.directories[generation] = Directory("", 1000, cache.rules["a"])
    cache.start()
    cache.directory(generation).list(sorted(cache.sources["a"]), 1 << 30)
    cache.send(cache.listed(generation))
    cache.run(but=(do.PublishShard,))
    publish = cache.under_way(do.PublishShard)[0]
    cache.pending.remove(publish)
    for event in cache.carry_out(publish):
        cache.send(event)


def test_generation_with_a_damaged_listing_is_leased_while_it_has_more():
    cache = a_whole_cache(first=1)
    start_another(cache, "one-2")
    cache.send(ev.AcquireAsked("few", "a", "x", 0))
    assert cache.under_way(do.WriteManifest)[-1].lease.generation == "one"
    cache.run()
    assert cache.disk.manifests[cache.acquire(1, "x").lease].generation == "one-2"


def test_changed_split_refuses_a_job_that_holds_a_set():
    cache = a_whole_cache()
    cache.hold(cache.acquire(0).lease)
    two = GenerationId("a", "two")
    cache.rules["a"] = cache.rules["a"]._replace(generation="two", split="eval 0.1")
    cache.disk.directories[two] = Directory("eval 0.1", 1000, cache.rules["a"])
    cache.start()
    refused = cache.acquire(1)
    assert refused.code == "split-changed"
    assert "datasets.a: split was set. Job job holds a set from before" in refused.message
    assert isinstance(cache.acquire(0, "other"), do.ReplyWaiting), "no lease crosses it"


def test_pinned_set_that_does_not_fit_is_refused_with_a_figure():
    cache = Cache(units=100, limit=8 * FOOTPRINT, pin=True)
    cache.list_all()
    reply = cache.acquire(0)
    assert reply.code == "impossible"
    assert "raise cache.limit" in reply.message


def test_pinned_set_is_leased_only_when_whole():
    cache = Cache(pin=True)
    assert isinstance(cache.acquire(0), do.ReplyWaiting)
    cache.list_all()
    assert cache.disk.manifests[cache.acquire(0).lease].num_records == 8


class Odd(Cache):
    """A cache in which shards have records that contradict the schema, `misfits` by number."""

    misfits: Mapping[int, int] = {}

    def send(self, event: ev.Event) -> list[do.Command]:
        if isinstance(event, ev.ShardSealed):
            misfits = self.misfits.get(event.number, 0)
            event = event._replace(misfits=misfits, misfit=f"'{event.number}': no jpg")
        return super().send(event)


@pytest.mark.parametrize("misfits", [{1: 99}, {0: 3, 1: 2}, {0: 500, 1: 600}])
def test_most_records_contradict_the_schema_the_dataset_stops_and_refuses(misfits):
    """Also if all of the first stream's records fit, because it fixed the schema."""
    cache = Odd(units=400, first=1, streams=2)
    cache.misfits = misfits
    cache.list_all()
    reply = cache.acquire(0)
    assert reply.code == "contradicted"
    assert f"{sum(misfits.values())} of the first {sum(misfits.values()) + 4} " in reply.message
    assert "records contradict the schema: '0': no jpg. Correct" in reply.message
    assert "raise datasets.a.generation" in reply.message
    cache.start()
    assert cache.acquire(0).code == "contradicted"


@pytest.mark.parametrize("misfits", [{}, {0: 2, 1: 2}, {3: 99, 4: 999}])
def test_few_of_the_first_records_contradict_the_schema_the_rest_is_leased(misfits):
    cache = Odd(units=400, first=1, streams=2)
    cache.misfits = misfits
    cache.list_all()
    assert isinstance(cache.acquire(0), do.ReplyGranted)


def test_nothing_is_leased_before_the_schema_is_judged():
    cache = Cache(units=400, first=1, streams=2)
    cache.directory(A).list(sorted(cache.sources["a"]), 1 << 30)
    cache.send(cache.listed(A))
    while cache.policy.datasets["a"].generation.table.num_live == 0:
        for command in list(cache.pending):
            cache.pending.remove(command)
            for event in cache.carry_out(command):
                cache.send(event)
        if worker := cache.workers.get(StreamId("a", "one", 0)):
            for event in list(worker.work(100)):
                cache.send(event)
    cache.send(ev.AcquireAsked("early", "a", "job", 0, 0, 1))
    assert isinstance(cache.replies["early"], do.ReplyWaiting), "one stream has sealed nothing"
    cache.run()
    assert isinstance(cache.acquire(0), do.ReplyGranted)
