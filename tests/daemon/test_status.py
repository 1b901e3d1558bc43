"""The status document of a cache that rotates, and what people are shown of it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from cachecd.cli.status import _print
from cachecd.daemon import loop
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from tests.daemon.life import Life, config
from tests.daemon.test_lives import SHARD, root, until

assert root  # a fixture

LIMIT = 3 << 20


def train(life: Life) -> dict[str, Any]:
    document: dict[str, Any] = life.loop.status()["datasets"]["train"]
    return document


async def full(life: Life) -> None:
    await until(lambda: train(life)["full"] and not train(life)["making"])


async def grant(life: Life, job: str, epoch: int) -> str:
    reply = await life.ask(ev.AcquireAsked("s", "train", job, epoch))
    assert isinstance(reply, do.ReplyGranted), reply
    assert isinstance(await life.ask(ev.RankHolds("h", reply.lease, 0)), do.ReplyDone)
    return reply.lease


@pytest.fixture
@asynccontextmanager
async def life(root) -> AsyncIterator[Life]:
    """At its limit."""
    async with Life(config(root, LIMIT, SHARD)) as opened:
        await full(opened)
        yield opened


async def test_status_names_the_lease_that_keeps_retired_shards(life, capsys, monkeypatch):
    monkeypatch.setattr(loop, "_PATIENCE", 0.0)
    monkeypatch.setattr(loop, "_MEASURE", 0.05)
    lease = await life.acquire()
    fd = os.dup(life.locks[lease])
    with capture_logs() as logs:
        for _ in range(3):
            await full(life)
            await life.acquire()
        await until(lambda: lease in train(life)["rotation_waits"])
        await until(lambda: any("rotation of train" in line["event"] for line in logs))
    assert train(life)["retired_bytes"] > 0
    document = life.loop.status()
    kept = {each["lease"]: each["held"] for each in document["leases"] if each["retired_bytes"]}
    assert kept[lease] is True
    shown = {"pid": 1, "uptime_s": 2.0, "workers": 1, "offline": False}
    sampler = {"workers": 1, "alive": 1, "restarts": 0, "last_end": ""}
    _print({**document, "daemon": shown, "sampler": sampler})
    said = capsys.readouterr().out
    assert "nothing rotates: lease" in said
    assert "retired" in said
    os.close(fd)


async def test_status_says_that_nothing_was_delivered(life):
    for epoch in range(2):
        await grant(life, "bare", epoch)
    assert "jobs reported 0 B as delivered" in train(life)["rotation_waits"]
