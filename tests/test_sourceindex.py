"""An index of several sources: each is listed as if it were alone, and goes on where it was."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cachecd import listings as module
from cachecd.config import DatasetConfig
from cachecd.errors import SourceUnreachableError
from cachecd.events import Event, Listed, ListingStopped, Relisted
from cachecd.executors.lister import Lister
from cachecd.index import Index
from cachecd.indexroom import DatasetRoom, IndexRoom
from cachecd.ledger import Ledger
from cachecd.model import ObjectInfo
from cachecd.plan import Assignment, Blocked, Plan
from cachecd.progress import Progress
from cachecd.sourceindex import SourceIndex
from cachecd.sourcewalk import SourceRules
from tests.units import SHARD_SIZE

URLS = ("s3://b/left/", "s3://b/right/")
CONFIG = DatasetConfig.model_validate(
    {"sources": [{"url": url, "format": "files", "weight": 1.0} for url in URLS]}
)


class EnoughError(Exception):
    """The listing is to end here."""


class Store:
    """Names so many objects in pages of 300, and fails after so many pages, one listing after another; from
    then on after `last` pages (-1: never)."""

    def __init__(self, count: int, faults: list[int] | None = None, last: int = -1) -> None:
        self.found = [ObjectInfo(f"{n // 50}-{n:05d}", n, "e") for n in range(count)]
        self.found.sort(key=lambda o: o.key)
        self.faults, self.last = faults or [], last
        self.asked: list[str] = []

    def list(self, after: str) -> Iterator[list[ObjectInfo]]:
        self.asked.append(after)
        fault = self.faults.pop(0) if self.faults else self.last
        there = [o for o in self.found if o.key > after]
        for nth, start in enumerate(range(0, max(len(there), 1), 300)):
            if nth == fault:
                raise SourceUnreachableError("cannot resolve the store's host name")
            yield there[start : start + 300]


Keep = Callable[..., tuple[Index, list[Event]]]


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keep]:
    """Lists both stores till that has succeeded, or one failed for good; the index, and what was fed."""
    opened: list[Index] = []

    def run(*stores: Store, for_good: int = -1) -> tuple[Index, list[Event]]:
        index = Index.open(tmp_path, "train", "s", sources=len(stores))
        opened.append(index)
        by_url = dict(zip(URLS, stores, strict=True))
        lister = Lister(8)
        monkeypatch.setattr(lister, "units", lambda source, after: by_url[source.url].list(after))
        monkeypatch.setattr(lister, "sweep", lambda source, lanes: None)
        monkeypatch.setattr(module.random, "uniform", lambda low, high: 0)
        fed: list[Event] = []

        def feed(event: Event) -> None:
            fed.append(event)
            stuck = isinstance(event, ListingStopped) and event.source == for_good and event.stuck
            if stuck and index.segments.marked(1 - for_good) is not None:
                raise EnoughError

        ledger = Ledger(1 << 30, 1)
        room = IndexRoom(ledger, 0, lambda: ledger.measured(index.allocated, float("inf")))
        about = index, DatasetRoom(room, "train"), lambda _: (), Progress()
        with contextlib.suppress(EnoughError):
            asyncio.run(module.keep_listed("train", CONFIG, lister, *about, feed))
        return index, fed

    yield run
    for index in opened:
        index.close()


def keys_of(index: Index, source: int) -> list[str]:
    keys = [index.unit(number).key for number in range(len(index))]
    return [key[2:] for key in keys if key.startswith(f"{source}/")]


def test_each_source_is_listed_as_if_it_were_alone(keep):
    left, right = Store(2500), Store(1700)
    index, fed = keep(left, right)
    assert index.complete
    for place, store in enumerate((left, right)):
        assert keys_of(index, place) == [o.key for o in store.found]
    assert index.segments.lengths == [2500, 1700]
    assert (index.ends_of(0), index.ends_of(1)) == ((1000, 2000, 2500), (1000, 1700))
    assert fed[-1] == Listed("train", 4200, complete=True, fresh=True, source=fed[-1].source)
    assert {event.source for event in fed} == {0, 1}


def test_sources_that_were_interrupted_go_on_where_each_was(keep):
    left, right = Store(2500, [3]), Store(1700, [0, 1], last=0)
    index, fed = keep(left, right, for_good=1)
    assert not index.complete
    reasons = {event.reason for event in fed if isinstance(event, ListingStopped) and event.source}
    assert reasons == {"sources.1 (s3://b/right/): cannot resolve the store's host name"}
    index.close()
    left.asked.clear()
    right.asked.clear()
    right.last = -1
    index, _ = keep(left, right)
    assert index.complete
    assert right.asked == [right.found[299].key]
    for place, store in enumerate((left, right)):
        assert keys_of(index, place) == [o.key for o in store.found]
    assert index.ends_of(1) == (1000, 1700)


def test_one_that_cannot_be_listed_keeps_the_others_from_nothing(keep):
    index, fed = keep(Store(1200), Store(500, last=0), for_good=1)
    assert not any(event.down for event in fed if isinstance(event, ListingStopped))
    plan = Plan("train", "g", index, 17, SHARD_SIZE, (SourceRules(), SourceRules()))
    plan.extend(index.complete)
    assert isinstance(plan.assign(), Blocked)
    plan.make_do(1)
    found = plan.assign()
    assert isinstance(found, Assignment)
    assert {unit.key[:2] for unit in found.units} == {"0/"}


def test_what_is_gone_from_one_source_is_gone_from_it_alone(keep):
    left, right = Store(1000), Store(1000)
    index, _ = keep(left, right)
    lost = [right.found.pop(7).key, right.found.pop(400).key]
    index.close()
    index, fed = keep(left, right)
    (gone,) = (e.gone for e in fed if isinstance(e, Relisted) and len(e.gone))
    assert [index.unit(number).key for number in gone.tolist()] == [f"1/{key}" for key in lost]
    assert [len(part.gone.numbers()) for part in SourceIndex.of(index)] == [0, 2]
    index.close()
    right.found = Store(1000).found
    _, fed = keep(left, right)
    assert [len(e.back) for e in fed if isinstance(e, Relisted) and len(e.back)] == [2]


def test_what_is_said_to_be_listed_can_be_read_at_that_instant(tmp_path):
    class Watched(list[int]):
        def __setitem__(self, place, length):
            super().__setitem__(place, length)
            last = index.segments.numbers(place, np.array([length - 1], np.uint64))
            read.append(int(index.sizes(last)[0]))

    read: list[int] = []
    index = Index.open(tmp_path, "train", "s", sources=2)
    index.segments.lengths = Watched(index.segments.lengths)
    for place in (0, 1, 0):
        index.append([ObjectInfo(f"{place}/{len(index)}", len(index) + 7)])
    index.close()
    assert read == [7, 8, 9]


def test_keys_that_a_listing_knew_take_no_memory_when_it_is_over(keep):
    index, _ = keep(Store(1200), Store(500))
    assert index._known is None
