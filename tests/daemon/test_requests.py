"""Requests of clients, answered by a whole cache."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cachecd.daemon.requests import Requests
from cachecd.disk.sidecar import sample_at
from cachecd.errors import DamagedError
from cachecd_client import protocol
from cachecd_client._core import Sidecar
from tests.daemon.life import READ_LOCK, Life, config
from tests.daemon.test_lives import LIMIT, MEMBERS, SHARD, TARS, is_whole, root, until

assert root  # a fixture


class Bench:
    """A whole cache of one dataset, and a client."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.requests = Requests(life.loop, lambda: {"a": "status"}, lambda: {"a": "detail"})
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


async def test_restarted_job_gets_a_new_lease(bench):
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


async def test_invalid_acquire_is_refused(bench):
    for fields in MISTAKEN:
        wanted = {"dataset": "train", "job": "job", "epoch": 0} | fields
        refused = await bench.ask(protocol.Acquire, **wanted)
        assert isinstance(refused, protocol.Refused)
        assert refused.code == ("unknown-dataset" if "dataset" in fields else "bad-request")


async def test_resumed_run_gets_the_same_set(bench):
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
    assert not bench.life.loop.work.excluded.excluded_from("train")
    assert isinstance(await bench.ask(protocol.Exclude, "train", ["x"], True), protocol.Done)
    again = await bench.ask(protocol.Exclude, "train", ["x"], False)
    assert isinstance(again, protocol.Done), "it was excluded before"


async def test_key_in_another_normalization_is_refused_with_the_listed_key(root, opened):
    os.link(root / "src" / "000.tar", root / "src" / "\u00e9.tar")
    async with opened() as bench:
        refused = await bench.ask(protocol.Exclude, "train", ["e\u0301.tar"], False)
        assert "(there is no 'e\\u0301.tar', but '\\xe9.tar', which only has " in refused.message


async def test_long_search_for_a_key_continues_for_the_next_request(bench, monkeypatch):
    found, searches = asyncio.Event(), []

    async def unknown(sides, keys):
        searches.append(keys)
        await found.wait()
        return set(keys), ["y"]

    monkeypatch.setattr(bench.requests, "_unknown", unknown)
    for _ in range(2):
        waiting = await bench.ask(protocol.Exclude, "train", ["x"], False)
        assert waiting.reason == "shards are searched for keys that are not listed"
    found.set()
    assert (await bench.ask(protocol.Exclude, "train", ["x"], False)).code == "unknown-key"
    assert len(searches) == 1


def samples_in(bench: Bench) -> Counter[tuple[str, str]]:
    """(object, sample) of each record in files of shards; nothing while one of them is being removed."""
    found = Counter[tuple[str, str]]()
    try:
        for path in bench.life.dir.glob("datasets/*/*/shards/*.tfrecord.idx"):
            sidecar = Sidecar.read(str(path))
            records = zip(sidecar.indices.tolist(), sidecar.offsets.tolist(), strict=True)
            for index, offset in records:
                found[sidecar.table[index][1].decode(), sample_at(path, offset)] += 1
    except (FileNotFoundError, DamagedError):
        return Counter()
    return found


def sidecars_of(root: Path, key: bytes) -> list[Path]:
    """The sidecars of the shards that have records of an object."""
    paths = (root / "cache").glob("datasets/*/*/shards/*.tfrecord.idx")
    return [p for p in paths if any(key == row[1] for row in Sidecar.read(str(p)).table)]


async def excluded(bench: Bench, key: str, *samples: str, ahead: bool = False) -> Any:
    return await bench.ask(protocol.Exclude, "train", [key], ahead, list(samples))


async def test_excluded_samples_are_in_no_later_shard(root, opened):
    """Neither with a shard that is made again from the source, nor with a supplement, nor a restart."""
    every = Counter({(f"{t:03d}.tar", f"{n:03d}"): 1 for t in range(TARS) for n in range(MEMBERS)})
    async with opened() as bench:
        assert samples_in(bench) == every
        unknown = await excluded(bench, "007.tar", "003", "0065", "x")
        assert unknown.code == "unknown-key"
        assert (
            "no sample of '007.tar' in the shards has the key '0065', nor 1 other keys: samples are named "
            "by __key__, as '006', '007', '008'. Nothing was excluded. --ahead" in unknown.message
        )
        for _ in range(2):
            assert isinstance(await excluded(bench, "007.tar", "003", "004"), protocol.Done)
        assert isinstance(await excluded(bench, "007.tar", "x", ahead=True), protocol.Done)
        text = (bench.life.dir / "excluded.jsonl").read_text()
        assert text.count('"003"') == text.count('"x"') == 1
        left = every - Counter([("007.tar", "003"), ("007.tar", "004")])
        gen = bench.life.loop.policy.datasets["train"].generation
        await until(lambda: not gen.repairs and samples_in(bench) == left)

        path = sidecars_of(root, b"007.tar")[0]
        shard = path.with_suffix("")
        shard.write_bytes(bytes([shard.read_bytes()[0] ^ 1]) + shard.read_bytes()[1:])
        number = int(path.name[:10])
        version = gen.table.facts(number).version
        damaged = gen.id.name, number, version, 0, "bad CRC"
        assert isinstance(await bench.ask(protocol.ReportCorrupt, "train", *damaged), protocol.Done)
        await until(lambda: gen.table.facts(number).version > version and not gen.repairs)
        assert samples_in(bench) == left
    for path in sidecars_of(root, b"007.tar"):
        path.write_bytes(b"damaged")  # a start retires the shard, and its records are fetched again
    async with opened() as bench:
        await until(lambda: samples_in(bench) == left)
        assert isinstance(await excluded(bench, "007.tar", "003"), protocol.Done)


@pytest.mark.parametrize(
    ("dataset", "why"),
    [
        ({"transform": ["tests.sampler.steps:nameless"]}, "have no names: source.transform drops"),
        (
            {"transform": [{"over_groups": "tests.sampler.steps:same"}]},
            "train has a step over groups, which mixes samples",
        ),
        (
            {"source": {"format": "files"}},
            "train has format files: only samples of a tar have names",
        ),
    ],
)
async def test_samples_are_refused_where_no_shard_can_be_searched(root, opened, dataset, why):
    source = {"url": f"file://{root}/src", "format": "webdataset"} | dataset.get("source", {})
    async with opened(**{**dataset, "source": source}) as bench:
        for ahead in (False, True):
            refused = await excluded(bench, "007.tar", "003", ahead=ahead)
            assert refused.code == "bad-request"
            assert why in refused.message
            assert "Nothing was excluded" in refused.message
        two = await bench.ask(protocol.Exclude, "train", ["007.tar", "8.tar"], False, ["003"])
        assert "expected samples of one" in two.message
        assert not bench.life.loop.work.excluded.excluded_from("train")


@pytest.mark.parametrize("steps", [None, ["tests.sampler.steps:remember"]])
async def test_sample_of_a_part_of_a_tar_is_unknown_only_if_a_transform_may_rename_it(
    opened, steps, monkeypatch
):
    async with opened(transform=steps) as bench:
        work = bench.life.loop.work

        def cached_samples(sides: Any, key: str, is_renamed: bool) -> tuple[set[str], bool]:
            return {"a"}, is_renamed

        monkeypatch.setattr(type(work), "cached_samples", staticmethod(cached_samples))
        reply = await excluded(bench, "007.tar", "x")
        assert isinstance(reply, protocol.Refused if steps else protocol.Done)


async def test_exclusion_holds_for_both_sides_of_a_split(opened):
    async with opened(split={"eval": 0.2}) as bench:
        assert bench.requests._sides("train") == ["train", "train-eval"]
        assert bench.requests._sides("train-eval") == ["train", "train-eval"]
        assert isinstance(
            await bench.ask(protocol.Exclude, "train-eval", ["007.tar"], False), protocol.Done
        )
        excluded = bench.life.loop.work.excluded
        assert (
            excluded.excluded_from("train")
            == excluded.excluded_from("train-eval")
            == {"007.tar": frozenset()}
        )


async def test_report_of_a_sound_shard_and_of_an_unknown_one_are_answered(bench):
    name = bench.life.loop.policy.datasets["train"].generation.id.name
    for fields in ((name, 0, 0), (name, 1 << 40, 7), ("0" * 16, 0, 0), ("../..", 0, 0)):
        done = await bench.ask(protocol.ReportCorrupt, "train", *fields, 12, "bad CRC")
        assert isinstance(done, protocol.Done)
    refused = await bench.ask(protocol.ReportCorrupt, "train", name, -1, 0, 12, "bad CRC")
    assert refused.code == "bad-request"
    assert not bench.life.loop.policy.datasets["train"].generation.repairs


async def test_refusal_of_an_empty_set_has_the_reasons(opened, root):
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
