"""The story of a shard or a lease."""

from __future__ import annotations

import os
from typing import Any

import pytest

from cachecd.daemon import story as module
from cachecd.daemon.story import Story
from cachecd.policy import events as ev
from cachecd_client import protocol
from tests.daemon.life import Life, config
from tests.daemon.test_lives import SHARD, root, until
from tests.daemon.test_requests import Bench
from tests.daemon.test_status import LIMIT, full

assert root  # a fixture


def said(told: dict[str, Any]) -> list[str]:
    return [each["what"].partition(":")[0] for each in told["story"]]


async def test_story_of_a_shard_has_its_events_in_order(root):
    async with Life(config(root, LIMIT, SHARD)) as life:
        generation = life.loop.policy.datasets["train"].generation
        await until(lambda: generation.table.num_live > 3)
        number = min(number for number, _ in generation.table.live())
        bench = Bench(life)
        told = (await bench.ask(protocol.AskStatus, f"train/{number}")).status
        assert said(told)[:3] == ["granted", "sealed", "published"]
        assert told["now"].startswith("live")
        times = [told["since"], *(each["at"] for each in told["story"])]
        assert times == sorted(times)

        os.truncate(life.loop.layout.generation(*generation.id).shard(number, 0), 10)
        await life.ask(ev.DamageReported("d", generation.id, number, 0))
        await until(lambda: generation.table.facts(number).version == 1)
        told = (await bench.ask(protocol.AskStatus, f"train/{number}")).status
        assert said(told)[-4:] == [
            "a reader reported a corrupt record",
            "quarantined",
            "version 1 is made from the source",
            "version 1 is live",
        ]


async def test_story_names_the_rule_that_retired_a_shard(root):
    async with Life(config(root, LIMIT, SHARD)) as life:
        generation = life.loop.policy.datasets["train"].generation
        await full(life)
        first = min(number for number, _ in generation.table.live())
        for _ in range(3):
            await full(life)
            await life.acquire()
        told = life.loop.story.of_shard(generation.id, first, life.loop.policy)
        assert any("rotation: an epoch began" in each["what"] for each in told["story"])


async def test_story_of_a_lease_ends_with_its_end(root):
    async with Life(config(root, LIMIT, SHARD)) as life:
        await full(life)
        lease = await life.acquire()
        told = life.loop.story.of_lease(lease, life.loop.policy)
        assert told is not None
        assert said(told)[:3] == ["made", "granted to rank 0", "rank 0 holds it"]
        assert told["now"] == "ranks that held it: 0 of 1"
        await life.acquire()  # releases the last lease
        await until(lambda: lease not in life.loop.policy.leases.by_id)
        told = life.loop.story.of_lease(lease, life.loop.policy)
        assert told is not None
        assert said(told)[-1] == told["now"] == "ended"


@pytest.mark.parametrize("subject", ["train/x", "other/3", "no-such-lease", "train/none/3"])
async def test_subject_that_is_not_known_is_refused_with_what_is_expected(root, subject):
    async with Life(config(root, LIMIT, SHARD)) as life:
        reply = await Bench(life).ask(protocol.AskStatus, subject)
        assert isinstance(reply, protocol.Refused)
        assert "DATASET/NUMBER" in reply.message


def test_story_drops_the_oldest_sentences_and_names_its_start(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 10)
    story = Story()
    for rank in range(100):
        story.note(ev.RankHolds("r", "lease", rank), [])
    assert len(story._sentences) == 10
    assert story._since == pytest.approx(story._sentences[0].at, abs=1)
