"""The key `stratify`, from the configuration to the walk: what it asks for, waits for and changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachecd import events as ev
from cachecd.config import DatasetConfig
from cachecd.plan import Blocked
from cachecd.preflight import generation_of, listing_of
from cachecd.rules import AWAITS_CLASSES, AWAITS_STRATA
from cachecd.status import document
from cachecd.strata import stratified
from tests.test_recovery import Cache
from tests.world import FOOTPRINT, UNIT, Units, World, granted, train

LABEL = {"pattern": "^([^/]+)/"}


def dataset(stratify: bool = True, **source: Any) -> DatasetConfig:
    source = {"url": "s3://bucket/train/", "format": "files", "label": LABEL, **source}
    return DatasetConfig.model_validate({"source": source, "stratify": stratify})


# --- the configuration


def test_it_is_part_of_no_generation_and_no_listing():
    assert generation_of(dataset()) == generation_of(dataset(stratify=False))
    assert listing_of(dataset()) == listing_of(dataset(stratify=False))


def test_what_a_split_holds_out_is_one_set_and_needs_no_order():
    split = DatasetConfig.model_validate({**dataset().model_dump(), "split": {"eval": 0.1}})
    assert split.stratify
    assert not split.other_side().stratify


# --- the policy


def said(w: World) -> str:
    return str(document(w.state, {}, 0.0)["datasets"]["train"]["waits_for"])


def test_it_waits_for_the_listings_end_and_says_so():
    units = Units([])
    w = World(8 * FOOTPRINT, {train(stratify=True): units}, unlisted={"train"})
    reply = w.acquire("train", "job", 0)
    assert isinstance(reply, ev.ReplyWaiting)
    assert reply.reason == f"listing the source: {AWAITS_STRATA}"
    assert said(w) == AWAITS_STRATA
    units.append([UNIT] * 10)
    w.feed(ev.Listed("train", 10, complete=True))
    assert said(w) == ""
    w.settle()
    assert granted(w.acquire("train", "job", 1))


def test_where_the_classes_are_awaited_too_it_is_they_that_are_named():
    assert train(stratify=True, awaits_classes=True).awaits == AWAITS_CLASSES
    assert train(stratify=True).awaits == AWAITS_STRATA
    assert train().awaits == ""


def test_the_order_is_asked_for_once_and_nothing_is_begun_before_it_is_there():
    state = World(8 * FOOTPRINT, {train(stratify=True): Units([])}, unlisted={"train"}).state
    listing = state.datasets["train"].plan._units
    listing.append([UNIT] * 100)
    (asked,) = state.handle(ev.Listed("train", 100, complete=True), 0.0)
    assert isinstance(asked, ev.OrderBlock)
    assert (asked.dataset, asked.block.begin, asked.block.end) == ("train", 0, 100)
    assert state.handle(ev.Tick(), 1.0) == []
    (waits,) = state.handle(ev.AcquireAsked("1", "train", "job", 0), 2.0)
    assert isinstance(waits, ev.ReplyWaiting)
    assert waits.reason == "stratify: the order of 100 units is being made"
    order = stratified(np.zeros(100, np.int32), asked.block.key)
    begun, _ = state.handle(ev.BlockOrdered("train", asked.block, order), 3.0)
    assert isinstance(begun, ev.StartShard)
    assert [u.unit for u in begun.assignment.units] == order[: len(begun.assignment.units)].tolist()


# --- a start


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    made = Cache(tmp_path)
    yield made
    made.stop()


def restart(cache: Cache, stratify: bool) -> None:
    cache.rules = dataclasses.replace(cache.rules, stratify=stratify)
    cache.restart()
    if strata := cache.plan.strata:
        assert cache.plan.assign() == Blocked()
        for block in strata.take_wanted():
            classes = (np.arange(block.begin, block.end) // 4).astype(np.int32)
            strata.ordered(block, stratified(classes, block.key))


def test_a_start_goes_on_in_the_same_order_where_the_last_one_was(cache):
    restart(cache, stratify=True)
    first = [{u.unit // 4 for u in cache.make().units} for _ in range(2)]
    assert first == [{0, 1, 2}, {0, 1, 2}]
    walked = cache.plan.passes
    restart(cache, stratify=True)
    assert cache.plan.passes == walked
    assert {u.unit // 4 for u in cache.make().units} == {0, 1, 2}
    assert cache.numbers() == [1, 2]


def test_set_or_taken_away_it_is_another_walk_and_keeps_what_is_cached(cache):
    held = {u.unit for u in cache.make().units}
    before = cache.plan.passes
    assert before[1] > 0
    for stratify, passes in ((True, (0, 0.0)), (False, before)):
        restart(cache, stratify=stratify)
        assert cache.plan.passes == passes, "the first walk goes on where it was"
        assert cache.numbers() == [1]
        assert not held & {u.unit for u in cache.assign().units}
