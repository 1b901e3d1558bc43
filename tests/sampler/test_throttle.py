"""The bandwidth, of one process and of several."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cachecd.sampler import throttle
from cachecd.sampler.throttle import CREDIT, SIZE, Throttle


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that moves when somebody sleeps."""
    now = [100.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(throttle.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(throttle.asyncio, "sleep", sleep)
    return now


@pytest.fixture
def link() -> Iterator[int]:
    descriptor = os.memfd_create("test-link")
    os.truncate(descriptor, SIZE)
    yield descriptor
    os.close(descriptor)


async def test_a_throttle_lets_through_its_rate_and_no_more(clock: list[float]):
    throttle = Throttle(1000.0)
    await throttle.take(500)
    assert clock[0] == 100.0, "the first is let through at once"
    for _ in range(20):
        await throttle.take(500)
    assert clock[0] == pytest.approx(110.0 - CREDIT)
    clock[0] += 60  # a pause saves up no right to a burst
    await throttle.take(1000)
    await throttle.take(1)
    assert clock[0] == pytest.approx(171.0 - 2 * CREDIT)


async def test_of_those_that_share_a_link_one_alone_has_all_of_it(clock: list[float], link: int):
    busy, idle = Throttle(1000.0, link), Throttle(1000.0, link)
    await idle.take(100)
    for _ in range(100):
        await busy.take(100)
    assert clock[0] == pytest.approx(110.0, abs=0.1)


_TAKE = """
import asyncio, sys, time
from cachecd.sampler.throttle import Throttle

async def take(link, count):
    throttle = Throttle(500_000.0, link)
    print(time.monotonic(), flush=True)
    for _ in range(count):
        await throttle.take(1000)
    print(time.monotonic())

asyncio.run(take(*map(int, sys.argv[1:])))
"""


def test_processes_that_share_a_link_never_exceed_its_rate_together(link: int):
    """One process is killed at some point; whatever it did then, the others go on."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _TAKE, str(link), str(count)],
            stdout=subprocess.PIPE,
            pass_fds=[link],
        )
        for count in (1 << 40, 100, 100)
    ]
    assert processes[0].stdout is not None
    processes[0].stdout.readline()
    processes[0].kill()
    said = [process.communicate(timeout=30)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [-9, 0, 0]
    times = [float(time) for words in said[1:] for time in words]
    assert max(times) - min(times) >= 199_000 / 500_000 - CREDIT
