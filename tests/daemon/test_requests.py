"""Requests of clients, answered by a whole cache."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cachecd.daemon.requests import Requests
from cachecd_client import protocol
from tests.daemon.life import READ_LOCK, Life, config
from tests.daemon.test_lives import LIMIT, SHARD, is_whole, root, until

assert root  # a fixture


class Bench:
    """A whole cache of one dataset, and a client."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.requests = Requests(life.loop, lambda: {"a": "status"})
        life.loop.runner._reply = self.requests.reply
        self.number = 0

    async def ask(self, kind: type[Any], *fields: Any, **more: Any) -> Any:
        self.number += 1
        replied: asyncio.Future[protocol.Reply] = asyncio.get_running_loop().create_future()
        self.requests.handle(kind(f"{self.number}", *fields, **more), replied.set_result)
        reply = await asyncio.wait_for(replied, 20)
        assert reply.id == f"{self.number}"
        return reply

    async def acquire(self, job: str = "job", epoch: int = 0, **more: Any) -> protocol.Granted:
        reply = await self.ask(protocol.Acquire, "train", job, epoch, **more)
        assert isinstance(reply, protocol.Granted), reply
        return reply

    async def hold(self, granted: protocol.Granted) -> int:
        fd = os.open(Path(granted.cache_dir) / granted.manifest, os.O_RDONLY)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, READ_LOCK)
        assert isinstance(await self.ask(protocol.Held, granted.lease), protocol.Done)
        return fd


@pytest.fixture
def opened(root) -> Callable[..., AbstractAsyncContextManager[Bench]]:
    """Opens a bench of a dataset with this configuration."""

    @asynccontextmanager
    async def open_it(**dataset: Any) -> AsyncIterator[Bench]:
        async with Life(config(root, LIMIT, SHARD, **dataset)) as life:
            await until(lambda: is_whole(life))
            yield Bench(life)

    return open_it


@pytest.fixture
def bench(opened) -> AbstractAsyncContextManager[Bench]:
    return opened()


async def test_lease_is_granted_held_and_released(bench):
    granted = await bench.acquire()
    assert Path(granted.cache_dir) == bench.life.dir
    assert granted.coverage == 1.0
    fd = await bench.hold(granted)
    rotation = bench.life.loop.policy.datasets["train"].rotation
    os.close(fd)
    done = await bench.ask(protocol.Released, granted.lease, delivered=0.5)
    assert isinstance(done, protocol.Done)
    size = bench.life.loop.policy.datasets["train"].generation.table.live_bytes
    assert rotation.delivered == size / 2
    await until(lambda: not bench.life.loop.policy.leases.by_id)
    refused = await bench.ask(protocol.Held, granted.lease)
    assert refused.code == "lease-lost"


async def test_delivery_is_reported_with_the_next_acquire(bench):
    granted = await bench.acquire()
    await bench.hold(granted)
    await bench.acquire(epoch=1, lease=granted.lease, delivered=0.25)
    size = bench.life.loop.policy.datasets["train"].generation.table.live_bytes
    assert bench.life.loop.policy.datasets["train"].rotation.delivered == size / 4


async def test_job_that_is_launched_again_gets_a_lease_of_its_own(bench):
    first = await bench.acquire()
    assert (await bench.acquire()).lease == first.lease, "it was granted and not held yet"
    os.close(await bench.hold(first))
    assert (await bench.acquire()).lease != first.lease


MISTAKEN = [
    {"shards": [[0, 1]], "streams": 1},
    {"shards": [[0, 2, 1]], "streams": 1},
    {"streams": 5000},
    {"streams": 1, "sampling_seed": 1 << 64},
    {"streams": 1, "place": -1},
    {"local_rank": 3},
    {"epoch": -1},
    {"dataset": "nothing"},
]


async def test_acquire_that_makes_no_sense_is_refused(bench):
    for fields in MISTAKEN:
        wanted = {"dataset": "train", "job": "job", "epoch": 0} | fields
        refused = await bench.ask(protocol.Acquire, **wanted)
        assert isinstance(refused, protocol.Refused)
        assert refused.code == ("unknown-dataset" if "dataset" in fields else "bad-request")


async def test_run_that_resumes_gets_its_set_again(bench):
    granted = await bench.acquire()
    lease = bench.life.loop.policy.leases.by_id[granted.lease].lease
    again = await bench.acquire(
        "other",
        generation=lease.generation,
        shards=[list(each) for each in lease.intervals],
        fingerprint=lease.fingerprint,
        sampling_seed=lease.sampling_seed,
        streams=lease.streams,
        place=lease.place,
    )
    leases = bench.life.loop.policy.leases.by_id
    assert leases[again.lease].lease.intervals == lease.intervals


async def test_exclusion_is_done_once_and_answered_each_time(bench):
    for _ in range(3):
        assert isinstance(
            await bench.ask(protocol.Exclude, "train", ["007.tar"], False), protocol.Done
        )
    excluded = bench.life.dir / "excluded.jsonl"
    await until(lambda: '"done": true' in excluded.read_text())
    assert excluded.read_text().count("007.tar") == 1
    refused = await bench.ask(protocol.Exclude, "nothing", ["007.tar"], False)
    assert refused.code == "unknown-dataset"


async def test_key_that_no_object_has_is_refused_unless_it_is_excluded_ahead(bench):
    refused = await bench.ask(protocol.Exclude, "train", ["007.tar", "00015", "x"], False)
    assert refused.code == "unknown-key"
    assert "no object of train has the key '00015', nor 1 other keys" in refused.message
    assert "as '000.tar', '001.tar'" in refused.message
    assert not bench.life.loop._started.work.excluded_keys("train")
    assert isinstance(await bench.ask(protocol.Exclude, "train", ["x"], True), protocol.Done)
    again = await bench.ask(protocol.Exclude, "train", ["x"], False)
    assert isinstance(again, protocol.Done), "it was excluded before"


async def test_excluded_key_that_differs_by_its_normalization_is_told_so(root, opened):
    os.link(root / "src" / "000.tar", root / "src" / "\u00e9.tar")
    async with opened() as bench:
        refused = await bench.ask(protocol.Exclude, "train", ["e\u0301.tar"], False)
        assert "(there is no 'e\\u0301.tar', but '\\xe9.tar', which only has " in refused.message


async def test_long_search_for_a_key_goes_on_and_its_result_is_for_the_next_request(
    bench, monkeypatch
):
    found, searches = asyncio.Event(), []

    async def unknown(sides, keys):
        searches.append(keys)
        await found.wait()
        return set(keys), ["y"]

    monkeypatch.setattr(bench.life.loop, "unknown", unknown)
    for _ in range(2):
        waiting = await bench.ask(protocol.Exclude, "train", ["x"], False)
        assert waiting.reason == "shards are searched for keys that are not listed"
    found.set()
    assert (await bench.ask(protocol.Exclude, "train", ["x"], False)).code == "unknown-key"
    assert len(searches) == 1


async def test_exclusion_holds_for_both_sides_of_a_split(opened):
    async with opened(split={"eval": 0.2}) as bench:
        assert bench.life.loop.sides("train") == ["train", "train-eval"]
        assert bench.life.loop.sides("train-eval") == ["train", "train-eval"]
        assert isinstance(
            await bench.ask(protocol.Exclude, "train-eval", ["007.tar"], False), protocol.Done
        )
        work = bench.life.loop._started.work
        assert work.excluded_keys("train") == work.excluded_keys("train-eval") == {"007.tar"}


async def test_report_of_a_sound_shard_and_of_an_unknown_one_are_answered(bench):
    name = bench.life.loop.policy.datasets["train"].generation.id.name
    for fields in ((name, 0, 0), (name, 1 << 40, 7), ("0" * 16, 0, 0), ("../..", 0, 0)):
        done = await bench.ask(protocol.ReportCorrupt, "train", *fields, 12, "bad CRC")
        assert isinstance(done, protocol.Done)
    refused = await bench.ask(protocol.ReportCorrupt, "train", name, -1, 0, 12, "bad CRC")
    assert refused.code == "bad-request"
    assert not bench.life.loop.policy.datasets["train"].generation.repairs


async def test_refusal_of_a_set_without_records_has_the_reasons(opened, root):
    (root / "src" / "007.tar").write_bytes(b"no tar")
    async with opened(transform=[{"decode_image": "bin"}]) as bench:
        async with asyncio.timeout(20):
            while isinstance(
                refused := await bench.ask(protocol.Acquire, "train", "job", 0), protocol.Waiting
            ):
                await asyncio.sleep(0.01)  # a supplement is being made
        assert refused.code == "impossible"
        assert "all units are skipped: 39 x decode_image raised" in refused.message
        assert "; 1 x " in refused.message
        assert "(for example 007.tar)" in refused.message
