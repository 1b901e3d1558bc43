"""What a daemon has done before it answers anybody."""

from __future__ import annotations

import asyncio

import pytest

from cachecd.catalog import Catalog, SavedPlan
from cachecd.config import load
from cachecd.eventloop import Daemon
from cachecd.model import EXCLUDED, SetAside
from cachecd.preflight import executor_of, figures, open_index
from cachecd_client import protocol
from cachecd_client.protocol import decode_manifest
from tests.bench.cachedir import DATASET, CacheFolder, make
from tests.executors.bench import until


def exclude(cache: CacheFolder, unit: int) -> None:
    """The daemon has said so, and is killed before it has barred the shards that hold it."""
    config = load(cache.config)
    index = open_index(cache.layout, figures(config).datasets[0], config.datasets[DATASET])
    key = index.unit(unit).key
    index.close()
    catalog = Catalog(cache.layout.catalog)
    plan = SavedPlan(DATASET, catalog.plan(DATASET) or {}, ())
    aside = SetAside(unit, key, EXCLUDED)
    catalog.save_progress(plan, set_aside=[aside], excluded=[(key, 0)])
    catalog.close()


def test_a_lease_right_after_a_start_names_no_shard_of_what_was_excluded(tmp_path):
    cache = make(tmp_path, shards=12)
    exclude(cache, unit=3)

    async def first_lease() -> list[list[int]]:
        config = load(cache.config)
        daemon = Daemon(config, figures(config), executor_of(config), offline=True)
        try:
            await daemon.start()
            reply = daemon.answer(protocol.Acquire("r", DATASET, "job", 0))
            assert isinstance(reply, protocol.Granted), reply
            return decode_manifest((cache.layout.root / reply.manifest).read_bytes()).shards
        finally:
            await daemon.stop(0)

    # Shard 4 is the one that holds unit 3.
    assert asyncio.run(first_lease()) == [[1, 3], [5, 12]]


@pytest.mark.parametrize(("owner", "work"), [("_probes", "all"), ("_meter", "look")])
def test_work_that_fails_otherwise_than_thought_is_told_in_status_and_goes_on(
    tmp_path, monkeypatch, owner, work
):
    cache = make(tmp_path, shards=3)

    async def lived() -> None:
        config = load(cache.config)
        daemon = Daemon(config, figures(config), executor_of(config), offline=True)
        part, failing, done = getattr(daemon, owner), True, 0
        real = getattr(part, work)

        def once() -> object:
            nonlocal done
            if failing:
                raise RuntimeError("nobody thought of this")
            done += 1
            return real()

        def stopped() -> str:
            return str(daemon.status()["cache"]["stopped"])

        try:
            failing = False
            monkeypatch.setattr(part, work, once)
            await daemon.start()
            failing = True
            await until(lambda: "nobody thought of this" in stopped())
            failing, done = False, 0
            await until(lambda: done and not stopped())
        finally:
            await daemon.stop(0)

    asyncio.run(lived())
