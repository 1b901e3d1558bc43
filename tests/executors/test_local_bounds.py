"""Local sampler processes: how long, how large, and what is left of them."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cachecd.executors.descendants import MARK
from cachecd.sampler.messages import Sealed
from tests.executors.bench import bench, until


async def test_nobody_is_silent_while_nobody_listens(tmp_path: Path):
    """This process was stopped, or the machine suspended: the time does not count."""

    async with bench(tmp_path, transform="tests.sampler.steps:slow", silence=1.5) as b:
        b.submit(1, b"x", b"y", b"z")
        [process] = b.executor._processes
        await until(lambda: b.unit_of(1) is not None)
        time.sleep(2)
        assert isinstance(await b.answer(1), Sealed)
        assert b.executor.pids == [process.pid]


async def test_what_a_killed_executor_left_is_ended_by_the_next_of_its_name(tmp_path: Path):
    """A child in a session of its own outlives kill -9, and keeps its file open."""

    mark = {**os.environ, MARK: "the cache//7"}
    left = subprocess.Popen(["sleep", "3600"], env=mark, start_new_session=True)
    others = [
        subprocess.Popen(["sleep", "3600"], env={**os.environ, MARK: name})
        for name in ("the cache2//7", "the cache//7//7", "the")
    ]
    async with bench(tmp_path, name="the cache") as b:
        assert left.wait(30) == -signal.SIGKILL
        assert len(b.executor.pids) == 1
    assert [other.poll() for other in others] == [None] * 3, "others are none of its business"
    for other in others:
        other.kill()
        other.wait()


@pytest.mark.parametrize(
    "workers",
    [(2, 8), (4, 2), (2, 8, 3), (4, 2, 4), (1, 4, 1)],
    ids=lambda w: "-".join(map(str, w)),
)
async def test_reload_leaves_the_new_number_of_processes_with_the_new_bound(
    tmp_path: Path, workers: tuple[int, ...]
):
    """Several reloads in a row: processes are ending and starting when the next one comes."""
    async with bench(tmp_path, workers=workers[0]) as b:
        setup, keepers = b.setup, b.executor._keepers
        b.submit(1, b"x")
        for number in workers[1:]:
            setup = dataclasses.replace(b.setup, memory=float(number << 30))
            b.executor.reload(setup, number)
            await asyncio.sleep(0)
        processes = b.executor._processes
        await until(lambda: all(p.setup is setup for p in processes))
        await until(lambda: len(processes) == len(keepers))
        assert b.executor.status().alive == b.executor.status().workers == workers[-1]
        b.submit(2, b"y")
        assert isinstance(await b.answer(2), Sealed)


async def test_process_over_a_reloaded_bound_is_killed(tmp_path: Path):
    async with bench(tmp_path, transform="tests.sampler.steps:slow") as b:
        b.executor.reload(dataclasses.replace(b.setup, memory=1.0), 1)
        b.submit(1, b"x")
        failed = await b.failed(1)
        assert "took more than 0 MiB of memory" in failed.reason


async def test_process_that_waits_for_work_is_not_silent(tmp_path: Path):
    async with bench(tmp_path, silence=1.0) as b:
        b.submit(1, b"x")
        await b.answer(1)
        pids = b.executor.pids
        await asyncio.sleep(2)
        b.submit(2, b"y")
        assert isinstance(await b.answer(2), Sealed)
        assert b.executor.pids == pids
