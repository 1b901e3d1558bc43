"""Half a simulated year: the policy's memory and the cost of an event do not grow."""

from __future__ import annotations

import pickle
import random
import time
from statistics import median

from cachecd.policy import commands as do
from cachecd.policy import events as ev
from tests.policy.cache import DAY, FOOTPRINT, A, Cache
from tests.policy.workers import Object

UNITS, SHARDS, EPOCHS = 100, 24, 3  # the source, what the limit holds of it, epochs of a day


class TimedCache(Cache):
    """Counts the time that the policy takes for each event."""

    seconds: list[float]

    def send(self, event: ev.Event) -> list[do.Command]:
        began = time.perf_counter()
        try:
            return super().send(event)
        finally:
            self.seconds.append(time.perf_counter() - began)


def trouble(cache: Cache, day: int, rng: random.Random) -> None:
    """Objects change or fail, or can be read again; the source is listed; on some days the disk is full."""
    for key in rng.sample(sorted(cache.sources["a"]), 10):
        old = cache.sources["a"][key]
        fault = rng.choice([None, (True, 0), (False, 0)])
        etag = old.etag + UNITS if rng.random() < 0.5 else old.etag
        cache.sources["a"][key] = Object(etag, old.records, fault)
    cache.list_all()
    if day % 5 == 0:
        cache.send(ev.Measured(0, 100_000, spare=0))
        cache.run()


def test_half_a_year_leaves_memory_files_and_costs_flat():
    rng = random.Random(7)
    TimedCache.seconds = []
    limit, step = SHARDS * FOOTPRINT, 8 * FOOTPRINT
    cache = TimedCache(units=UNITS, limit=limit, streams=2, first=20, per_epoch=step)
    cache.list_all()
    stays = cache.epoch(0, "stays")
    held, epoch, samples = "", 1, []
    for day in range(180):
        trouble(cache, day, rng)
        for _ in range(EPOCHS):
            before, held = held, cache.epoch(epoch)
            epoch += 1
            if before:
                cache.end(before)
            cache.pass_time(DAY / EPOCHS)
        if day % 15 == 14:
            directory = cache.disk.directories[A]
            files = len(directory.shards) + len(directory.bad) + len(directory.old)
            samples.append((len(pickle.dumps(cache.policy)), files, median(cache.seconds)))
            cache.seconds.clear()
    assert stays in cache.disk.manifests
    assert cache.policy.datasets["a"].generation.num_retired > 180, "it rotated all the time"
    memory, files, seconds = zip(*samples, strict=True)
    assert max(memory[6:]) < 1.2 * max(memory[:6]), memory
    # By medians: a lease that keeps a whole set when it is counted adds 20 files.
    assert median(files[6:]) < 1.3 * median(files[:6]), files
    assert median(seconds[6:]) < 1.5 * median(seconds[:6]), seconds
