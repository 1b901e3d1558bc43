"""Whole lives of a cache: real files, real listing, a real worker; no socket."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from cachecd.daemon import loop
from cachecd.disk.filesystem import allocated
from cachecd.errors import DiskError
from cachecd.policy import events as ev
from cachecd_client._core import Sidecar, scan
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


def run(play: Callable[[], Any]) -> None:
    asyncio.run(play())


def test_cache_grows_until_it_is_whole_and_names_each_record_once(root):
    async def play() -> None:
        async with Life(config(root, LIMIT, SHARD)) as life:
            await until(lambda: is_whole(life))
            lease = await life.acquire()
            found = names(life.shards(lease))
            assert set(found.values()) == {1}
            assert len(found) == TARS * MEMBERS
            assert allocated(life.dir) <= LIMIT
            before = life.loop._fetched
            source = sum(path.stat().st_size for path in (root / "src").iterdir())
            assert before <= 1.1 * source
        async with Life(config(root, LIMIT, SHARD)) as life:
            await until(lambda: is_whole(life))
            assert await life.acquire()
            assert life.loop._fetched == before, "a start fetches nothing again"

    run(play)


def test_cache_rotates_under_its_limit(root):
    async def play() -> None:
        limit = 3 << 20
        async with Life(config(root, limit, SHARD)) as life:
            seen: set[tuple[bytes, int]] = set()
            async with asyncio.timeout(60):
                while len(seen) < TARS * MEMBERS:
                    if lease := await life.acquire():
                        found = names(life.shards(lease))
                        assert set(found.values()) <= {1}
                        seen |= set(found)
                    assert allocated(life.dir) <= limit
                    await asyncio.sleep(0.1)

    run(play)


def test_excluded_key_is_in_no_later_set(root):
    async def play() -> None:
        async with Life(config(root, LIMIT, SHARD)) as life:
            await until(lambda: life.loop.policy.datasets["train"].generation.table.num_live > 2)
            await life.ask(ev.ExcludeAsked("x", "train", ("007.tar", "020.tar")))
            await until(
                lambda: (
                    is_whole(life)
                    and not life.loop.policy.datasets["train"].generation.quarantine.work
                )
            )
            keys = {key for key, _ in names(life.shards(await life.acquire()))}
            assert len(keys) == TARS - 2
            assert not keys & {b"007.tar", b"020.tar"}
        assert "007.tar" in (life.dir / "excluded.jsonl").read_text()
        assert os.listdir(life.dir / "leases")

    run(play)


def test_work_that_fails_otherwise_than_expected_is_done_again(root, monkeypatch):
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

    async def play() -> None:
        async with Life(config(root, LIMIT, SHARD)) as life:
            await until(lambda: is_whole(life) and not any(failures.values()))

    run(play)


def published(folder: Path) -> dict[str, int]:
    """The inodes of shards whose two files have their names."""
    paths = list(folder.glob("datasets/train/*/shards/*.tfrecord"))
    whole = [path for path in paths if Path(f"{path}.idx").exists()]
    return {path.name: path.stat().st_ino for path in whole}


@pytest.mark.parametrize("limit", [LIMIT, 3 << 20])
def test_killed_cache_goes_on_where_it_was(root, limit):
    """Kills by SIGKILL at random points of the life, before, while and after it grows and rotates."""
    chance = random.Random(limit)
    folder = root / "cache"
    command = [sys.executable, "-m", "tests.daemon.life", str(root), str(limit), str(SHARD)]
    for _ in range(7):
        before = published(folder)
        with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == {"open": True}
            after_start = published(folder)
            time.sleep(chance.uniform(0, 0.7))
            process.kill()
            said = [json.loads(line) for line in process.stdout if line.endswith("}\n")]
        assert allocated(folder) <= limit
        if limit == LIMIT:  # nothing retires
            assert before.items() <= after_start.items() <= published(folder).items()
        if said:
            there = [Path(shard) for shard in said[-1]["shards"]]
            assert set(names(there).values()) <= {1}, "the last lease's files are whole and there"

    async def play() -> None:
        async with Life(config(root, limit, SHARD)) as life:
            seen: set[tuple[bytes, int]] = set()
            async with asyncio.timeout(60):
                while len(seen) < TARS * MEMBERS:
                    if lease := await life.acquire():
                        found = names(life.shards(lease))
                        assert set(found.values()) <= {1}
                        seen |= set(found)
                    assert allocated(folder) <= limit
                    await asyncio.sleep(0.02)

    run(play)
