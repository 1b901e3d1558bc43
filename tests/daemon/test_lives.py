"""A whole cache with real files, a real listing and a real worker, but without a socket."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachecd.daemon import loop, refetch
from cachecd.disk.filesystem import walk
from cachecd.errors import DiskError
from cachecd.executors.lister import ProcessLister
from cachecd.policy import events as ev
from cachecd_client._core import Sidecar, scan
from cachecd_client.protocol import decode_manifest
from tests.daemon.life import Life, config
from tests.sampler.test_webdataset import archive

LIMIT, SHARD = 12 << 20, 256 << 10
TARS, MEMBERS, BODY = 40, 20, 4000


@pytest.fixture
def root(tmp_path) -> Path:
    """About 3.2 MB of records in tars."""
    chance = random.Random(5)
    (tmp_path / "src").mkdir()
    for tar in range(TARS):
        members = [(f"{n:03d}.bin", chance.randbytes(BODY)) for n in range(MEMBERS)]
        (tmp_path / "src" / f"{tar:03d}.tar").write_bytes(archive(members))
    return tmp_path


def names(shards: list[Path]) -> Counter[tuple[bytes, int]]:
    """(key of the tar, ordinal) of each record, after every record's CRCs were checked."""
    found: Counter[tuple[bytes, int]] = Counter()
    for shard in shards:
        sidecar = Sidecar.read(f"{shard}.idx")
        if len(sidecar):
            assert scan(str(shard), verify=True).tolist() == sidecar.offsets.tolist()
        keys = [key for _, key, *_ in sidecar.table]
        for index, ordinal in zip(sidecar.indices.tolist(), sidecar.ordinals.tolist(), strict=True):
            found[keys[index], ordinal] += 1
    return found


async def until(there: Callable[[], Any], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not there():
            await asyncio.sleep(0.005)


def is_whole(life: Life) -> bool:
    return life.loop.policy.datasets["train"].generation.is_whole


async def test_cache_grows_to_the_whole_source_without_duplicates(root):
    async with Life(config(root, LIMIT, SHARD)) as life:
        await until(lambda: is_whole(life))
        lease = await life.acquire()
        found = names(life.shards(lease))
        assert set(found.values()) == {1}
        assert len(found) == TARS * MEMBERS
        assert sum(walk(life.dir)) <= LIMIT
        before = life.loop.ingest.fetched
        source = sum(path.stat().st_size for path in (root / "src").iterdir())
        assert before <= 1.1 * source
    async with Life(config(root, LIMIT, SHARD)) as life:
        await until(lambda: is_whole(life))
        assert await life.acquire()
        assert life.loop.ingest.fetched == before, "a start fetches nothing again"


async def test_cache_rotates_under_its_limit(root):
    limit = 3 << 20
    async with Life(config(root, limit, SHARD)) as life:
        seen: set[tuple[bytes, int]] = set()
        async with asyncio.timeout(60):
            while len(seen) < TARS * MEMBERS:
                if lease := await life.acquire():
                    found = names(life.shards(lease))
                    assert set(found.values()) <= {1}
                    seen |= set(found)
                assert sum(walk(life.dir)) <= limit
                await asyncio.sleep(0.1)


async def test_excluded_key_is_in_no_later_set(root):
    async with Life(config(root, LIMIT, SHARD)) as life:
        await until(lambda: life.loop.policy.datasets["train"].generation.table.num_live > 2)
        await life.ask(ev.ExcludeAsked("x", "train", ("007.tar", "020.tar")))
        await until(
            lambda: is_whole(life) and not life.loop.policy.datasets["train"].generation.repairs
        )
        keys = {key for key, _ in names(life.shards(await life.acquire()))}
        assert len(keys) == TARS - 2
        assert not keys & {b"007.tar", b"020.tar"}
    assert "007.tar" in (life.dir / "excluded.jsonl").read_text()
    assert os.listdir(life.dir / "leases")


async def test_sample_excluded_while_its_tar_is_read_is_in_no_later_set(root):
    """Workers read the tars without the exclusion, so the shards that they seal are not published."""
    async with Life(config(root, LIMIT, SHARD)) as life:
        generation = life.loop.policy.datasets["train"].generation
        await until(lambda: generation.table.num_live > 2)
        for tar in range(TARS):
            await life.ask(ev.ExcludeAsked("x", "train", (f"{tar:03d}.tar",), ("004", "015")))
        await until(lambda: is_whole(life) and not generation.repairs)
        found = names(life.shards(await life.acquire()))
        assert set(found.values()) == {1}
        assert {ordinal for _, ordinal in found} == {*range(MEMBERS)} - {4, 15}
        assert len(found) == TARS * (MEMBERS - 2)
        assert life.status()["datasets"]["train"]["skipped"]["records"] == 0


async def test_work_is_retried_after_an_unexpected_error(root, monkeypatch):
    monkeypatch.setattr(loop, "_PAUSE", 0.01)
    failures = {"keep": [ZeroDivisionError(), DiskError("EIO")], "_measure": [ZeroDivisionError()]}

    def failing(of: type, name: str) -> None:
        real = getattr(of, name)

        async def work(self: Any) -> None:
            if failures[name]:
                raise failures[name].pop()
            await real(self)

        monkeypatch.setattr(of, name, work)

    failing(loop.ListingKeeper, "keep")
    failing(loop.CacheLoop, "_measure")
    monkeypatch.setattr(loop, "_MEASURE", 0.01)
    async with Life(config(root, LIMIT, SHARD)) as life:
        await until(lambda: is_whole(life) and not any(failures.values()))


async def test_killed_worker_costs_no_record(root):
    async with Life(config(root, LIMIT, SHARD), workers=2) as life:
        generation = life.loop.policy.datasets["train"].generation
        await until(lambda: generation.table.num_live)
        os.kill(life.executor.pids[0], signal.SIGKILL)
        await until(lambda: life.executor.status().restarts)
        await until(lambda: is_whole(life))
        found = names(life.shards(await life.acquire()))
        assert len(found) == TARS * MEMBERS
        assert set(found.values()) == {1}
        assert sum(walk(life.dir)) <= LIMIT


async def test_damaged_shard_is_made_again_from_the_source(root):
    async with Life(config(root, LIMIT, SHARD)) as life:
        await until(lambda: is_whole(life))
        generation = life.loop.policy.datasets["train"].generation
        number = next(number for number, _ in generation.table.live())
        [shard] = (life.dir / "datasets").glob(f"train/*/shards/{number:010d}.tfrecord")
        before = names([shard])
        data = bytearray(shard.read_bytes())
        data[100] ^= 1
        shard.write_bytes(data)
        await life.ask(ev.DamageReported("d", generation.id, number, 0))
        await until(lambda: not generation.repairs)
        assert generation.table.facts(number).version == 1
        assert not shard.exists()
        assert names([shard.with_name(f"{number:010d}.1.tfrecord")]) == before
        found = names(life.shards(await life.acquire()))
        assert len(found) == TARS * MEMBERS
        assert set(found.values()) == {1}


async def test_units_that_were_skipped_are_cached_in_a_supplement(root, monkeypatch):
    """Two objects are missing while the dataset is fetched, and exist again at the next start."""
    away = [root / "src" / f"{number:03d}.tar" for number in (3, 30)]
    given = config(root, LIMIT, SHARD)
    pages = list(ProcessLister(4).units(given.datasets["train"].source))
    for path in away:
        path.rename(root / path.name)
    with monkeypatch.context() as patch:
        patch.setattr(ProcessLister, "units", lambda *_: iter(pages))
        patch.setattr(ProcessLister, "sweep", lambda *_: None)
        async with Life(given) as life:
            await until(lambda: is_whole(life))
            found = names(life.shards(await life.acquire()))
            assert len(found) == (TARS - 2) * MEMBERS
    for path in away:
        (root / path.name).rename(path)
    async with Life(config(root, LIMIT, SHARD)) as life:
        generation = life.loop.policy.datasets["train"].generation
        index = generation.table.streams
        await until(lambda: generation.table.oldest_live(index) is not None)
        found = names(life.shards(await life.acquire()))
        assert len(found) == TARS * MEMBERS
        assert set(found.values()) == {1}


async def test_remake_is_retried_after_an_unexpected_error(root, monkeypatch):
    failures = [ZeroDivisionError(), DiskError("EIO")]
    real = refetch.cached_records

    def failing(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*args)

    monkeypatch.setattr(refetch, "cached_records", failing)
    async with Life(config(root, LIMIT, SHARD)) as life:
        generation = life.loop.policy.datasets["train"].generation
        supplements = generation.supplements
        await until(lambda: is_whole(life) and supplements.tried and not supplements.searching)
        assert not failures
        assert not generation.supplements.pieces


async def test_misfit_records_cost_no_other_and_a_remade_shard_is_complete(tmp_path):
    """Misfit samples anywhere in the tars, and one tar with misfits only; a damaged and a lost shard."""
    (tmp_path / "src").mkdir()
    chance, good = random.Random(7), set()
    for tar in range(24):
        odd = set(range(MEMBERS)) if tar == 11 else set(chance.sample([0, 1, 5, 18, 19], tar % 4))
        good |= {(f"{tar:03d}.tar".encode(), n) for n in range(MEMBERS) if n not in odd}
        kinds = ["odd" if n in odd else "bin" for n in range(MEMBERS)]
        members = [(f"{n:03d}.{kind}", chance.randbytes(BODY)) for n, kind in enumerate(kinds)]
        (tmp_path / "src" / f"{tar:03d}.tar").write_bytes(archive(members))
    given = config(tmp_path, LIMIT, 64 << 10, pin=True)
    async with Life(given) as life:
        await until(lambda: is_whole(life))
        generation = life.loop.policy.datasets["train"].generation
        lease = await life.acquire()
        found = names(life.shards(lease))
        assert (set(found), set(found.values())) == (good, {1})
        manifest = (life.dir / "leases" / f"{lease}.json").read_bytes()
        assert decode_manifest(manifest).num_skipped == 24 * MEMBERS - len(good)
        skipped = life.status()["datasets"]["train"]["skipped"]
        assert (skipped["units"], skipped["records"]) == (1, 24 * MEMBERS - len(good) - MEMBERS)
        numbers = [number for number, _ in generation.table.live()]
        await life.ask(ev.DamageReported("d", generation.id, numbers[0], 0))
        await until(lambda: not generation.repairs)
        found = names(life.shards(await life.acquire()))
        assert (set(found), set(found.values())) == (good, {1})
        [sidecar] = life.dir.glob(f"datasets/train/*/shards/{numbers[5]:010d}.tfrecord.idx")
    sidecar.unlink()
    async with Life(given) as life:
        await until(
            lambda: is_whole(life) and not life.loop.policy.datasets["train"].generation.repairs
        )
        generation = life.loop.policy.datasets["train"].generation
        await until(lambda: generation.supplements.retry_at)
        assert len(generation.supplements.retry_at) == 1, (
            "only the tar of which nothing can be used"
        )
        found = names(life.shards(await life.acquire()))
        assert (set(found), set(found.values())) == (good, {1})
