"""The status document of a rotating cache, and the lines that `cachecd status` prints."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from cachecd.cli.status import _print
from cachecd.daemon import loop
from cachecd.disk.durable import read_egress
from cachecd.errors import DamagedError
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from tests.daemon.life import Life, config
from tests.daemon.test_lives import SHARD, root, until

assert root  # a fixture

LIMIT = 3 << 20


def printed(document, capsys):
    """Returns the output of `cachecd status` for the status document."""
    shown = {"pid": 1, "uptime_s": 2.0, "workers": 1, "offline": False}
    sampler = {"workers": 1, "alive": 1, "restarts": 0, "last_end": ""}
    _print({**document, "daemon": shown, "sampler": sampler})
    return capsys.readouterr().out


def train(life: Life) -> dict[str, Any]:
    document: dict[str, Any] = life.status()["datasets"]["train"]
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
        await until(lambda: any(line["event"] == "rotation of train waits" for line in logs))
        [level] = {line["log_level"] for line in logs if "rotation of" in line["event"]}
        assert level == "info", "a pause is no failure"
    assert train(life)["retired_bytes"] > 0
    document = life.status()
    kept = {each["lease"]: each["held"] for each in document["leases"] if each["retired_bytes"]}
    assert kept[lease] is True
    said = printed(document, capsys)
    assert "nothing rotates: lease" in said
    assert "retired" in said
    os.close(fd)


async def test_status_reports_that_nothing_was_delivered(life):
    for epoch in range(2):
        await grant(life, "bare", epoch)
    assert "jobs reported 0 B as delivered" in train(life)["rotation_waits"]


async def test_limit_beyond_the_file_system_is_a_warning_at_the_start_and_a_reload(root):
    with capture_logs() as logs:
        async with Life(config(root, 1 << 60, SHARD)) as life:
            life.loop.configure(config(root, LIMIT, SHARD), LIMIT)
            life.loop.configure(config(root, 1 << 59, SHARD), 1 << 59)
    found = [line for line in logs if "cache.limit exceeds the file system" in line["event"]]
    assert [line["limit"] for line in found] == ["1.0 EiB", "512.0 PiB"]
    assert "lower the limit" in found[0]["event"]


async def test_egress_limit_that_is_reached_is_logged_unless_the_dataset_is_whole(
    root, monkeypatch
):
    monkeypatch.setattr(loop, "_MEASURE", 0.05)
    given = config(root, 12 << 20, SHARD)
    sampler = given.sampler.model_copy(update={"egress_limit": 1 << 20})
    with capture_logs() as logs:
        async with Life(given.model_copy(update={"sampler": sampler})) as life:
            await until(lambda: any(line["event"] == "ingest stops" for line in logs))
            life.loop.configure(given, 12 << 20)
            await until(lambda: any(line["event"] == "ingest continues" for line in logs))
            await until(lambda: train(life)["whole"])
    [stopped] = [line for line in logs if line["event"] == "ingest stops"]
    assert stopped["log_level"] == "warning"
    assert "sampler.egress_limit is 1.0 MiB: raise it" in stopped["why"]


async def test_restarted_daemon_counts_fetched_bytes_from_zero(root):
    given = config(root, LIMIT, SHARD)
    async with Life(given) as life:
        await full(life)
        cache = life.status()["cache"]
        assert cache["fetched_since_start"] == cache["fetched_bytes"] > 0
    (life.dir / "egress.json").write_text('{"version": 1, "fetched": 123456789}')
    async with Life(given) as life:
        cache = life.status()["cache"]
        assert cache["fetched_bytes"] - cache["fetched_since_start"] == 123456789


async def test_egress_limit_is_not_reloaded_while_egress_json_is_damaged(root):
    given = config(root, LIMIT, SHARD)
    async with Life(given) as life:
        await full(life)
    (life.dir / "egress.json").write_text("{")
    sampler = given.sampler.model_copy(update={"egress_limit": 1 << 40})
    limited = given.model_copy(update={"sampler": sampler})
    async with Life(given) as life:
        with pytest.raises(DamagedError, match="remove the file to count from 0"):
            life.loop.configure(limited, LIMIT)
        assert life.loop.policy.restraint.egress_limit is None
        await life.loop._write_counts()
        (life.dir / "egress.json").write_text('{"version": 1, "fetched": 123456789}')
        life.loop.configure(limited, LIMIT)
        assert life.loop.policy.restraint.egress_limit == 1 << 40
        assert life.status()["cache"]["fetched_bytes"] >= 123456789
    assert read_egress(life.dir / "egress.json") >= 123456789


class Unlistable:
    """A dataset's listing fails unexpectedly; another dataset's works."""

    def __init__(self, life: Life) -> None:
        self.failing = True
        self.loop = life.loop

    async def one(self) -> None:
        if self.failing:
            raise ValueError("its classes cannot be read")

    async def other(self) -> None:
        pass


async def test_failure_of_one_dataset_stays_after_the_success_of_another(life):
    keepers = Unlistable(life)
    failing = asyncio.ensure_future(life.loop._repeat(keepers.one, "the listing of one"))
    try:
        await until(lambda: "the listing of one" in life.status()["complaints"])
        await life.loop._repeat(keepers.other, "the listing of other")
        assert "cannot be read" in life.status()["complaints"]["the listing of one"]
        keepers.failing = False
        await failing
        assert life.status()["complaints"] == {}
    finally:
        failing.cancel()


async def test_status_and_log_name_the_omitted_objects(root, capsys):
    (root / "src" / ".x").write_bytes(b"x")
    (root / "src" / "none.tar").touch()
    (root / "src" / "_delta_log").mkdir()
    with capture_logs() as logs:
        async with Life(config(root, LIMIT, SHARD)) as life:
            await until(lambda: train(life)["listed"])
            document = life.status()
    said = printed(document, capsys)
    assert "  omitted: 2 hidden names (.x, _delta_log/), 1 empty object (none.tar)\n" in said
    assert "  the source has a table of Delta in it: " in said
    assert any("table of Delta" in line.get("why", "") for line in logs)
