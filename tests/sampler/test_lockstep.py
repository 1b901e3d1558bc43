"""The user's code in step with the event loop, also when its step is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cachecd.sampler.sources.python import Lockstep


@pytest.mark.timeout(20)
def test_cancelled_step_frees_the_thread_for_the_next():
    """Whatever the code was waiting for, and however often it tries again."""
    steps, tried = Lockstep(), []

    async def never() -> None:
        await asyncio.sleep(1000)

    def code() -> None:
        for attempt in range(3):
            try:
                steps.wait(never)
            except BaseException as error:
                tried.append((attempt, type(error).__name__))

    async def run() -> Any:
        task = asyncio.ensure_future(steps.run(code))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await steps.run(lambda: "next")

    assert asyncio.run(run()) == "next"
    assert tried == [(attempt, "CancelledError") for attempt in range(3)]
