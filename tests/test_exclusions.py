"""How a unit that is to go is looked for, in listing and catalog, without keeping others waiting."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from cachecd import exclusions
from cachecd.catalog import Catalog, SavedPlan
from cachecd.errors import DiskError
from cachecd.events import ExclusionsKnown, HoldersFound, UnitsExcluded
from cachecd.excluded import Excluded
from cachecd.exclusions import Exclusions
from cachecd.index import Index
from cachecd.model import ObjectInfo, Shard, ShardId
from cachecd.rules import DatasetRules
from cachecd_client import protocol
from tests.test_index import SOURCE


@pytest.fixture
def search(tmp_path):
    """Three objects, one of two units, and three shards that hold them; what is fed, in `events`."""
    index = Index.open(tmp_path, "train", SOURCE)
    index.append(
        [ObjectInfo("a", 1), ObjectInfo("b", 1), ObjectInfo("b", 1, begin=1), ObjectInfo("c", 1)]
    )
    catalog = Catalog(tmp_path / "catalog.sqlite")
    for number, units in enumerate([[0], [1, 3], [2]], 1):
        shard = Shard(ShardId("train", number), "g", 1, 1, 1)
        catalog.save_progress(SavedPlan("train", {}, ()), shard=shard, units=units)
    saver, events = SimpleNamespace(behind=False, reason="no space left"), []
    live = SimpleNamespace(generations=["g"])
    train = SimpleNamespace(
        rules=DatasetRules("train", "g", 1), excluded=Excluded(), numbered_alike=["g"],
        listings={"g": index.id}, live=live,
    )  # fmt: skip
    datasets = {"train": train}
    found = Exclusions(
        tmp_path, catalog, saver, {"train": index}, datasets, events.append, asyncio.ensure_future
    )
    yield SimpleNamespace(
        exclusions=found, events=events, saver=saver, index=index, catalog=catalog, train=train
    )
    catalog.close()
    index.close()


async def answer(search, key, begin=None, dataset="train"):
    """Asked as a client asks: until it is known."""
    for number in range(10_000):
        asked = protocol.Exclude(str(number), dataset, key, begin)
        reply = search.exclusions.answer(asked)
        assert reply.id == str(number)
        if not isinstance(reply, protocol.Waiting):
            return reply
        await asyncio.sleep(0.001)
    raise AssertionError("never answered")


def test_units_are_set_aside_first_and_then_the_shards_that_hold_them_are_named(search):
    reply = asyncio.run(answer(search, "b"))
    assert (reply.units, reply.shards) == (2, 2)
    (first, second) = search.events
    assert isinstance(first, UnitsExcluded)
    assert [unit.name for unit in first.units] == [("b", 0), ("b", 1)]
    assert second == HoldersFound("train", [2, 3])


def test_one_unit_of_an_object_is_named_by_where_it_begins(search):
    reply = asyncio.run(answer(search, "b", begin=1))
    assert (reply.units, reply.shards) == (1, 1)
    assert search.events[-1] == HoldersFound("train", [3])


@pytest.mark.parametrize(("later", "searches"), [(59.0, 1), (61.0, 2)])
def test_an_answer_is_kept_for_a_minute_and_not_for_ever(search, monkeypatch, later, searches):
    now = [0.0]
    monkeypatch.setattr(exclusions, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def asked():
        search.exclusions.answer(protocol.Exclude("1", "train", "b", None))
        while len(search.events) < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # what was found is noted
        now[0] += later
        await answer(search, "b")

    asyncio.run(asked())
    assert len(search.events) == 2 * searches


def test_a_search_that_fails_otherwise_than_thought_is_answered_all_the_same(search, monkeypatch):
    async def asked():
        monkeypatch.setattr(search.index, "find", lambda _: 1 // 0)
        return await answer(search, "b")

    reply = asyncio.run(asked())
    assert isinstance(reply, protocol.Refused)
    assert "the daemon's log says why" in reply.message


def test_what_is_not_listed_is_refused_and_changes_nothing(search):
    reply = asyncio.run(answer(search, "d"))
    assert (reply.code, search.events) == ("bad-request", [])
    assert "has no unit of the object 'd'; it has 4 units, and is still being made" in reply.message
    reply = asyncio.run(answer(search, "b", begin=7))
    assert "no unit of the object 'b' that begins at byte 7" in reply.message
    assert asyncio.run(answer(search, "a", dataset="eval")).code == "unknown-dataset"


def test_holders_are_looked_for_when_the_catalog_has_all_rows(search):
    async def late():
        search.saver.behind = True
        asked = asyncio.ensure_future(answer(search, "a"))
        while not search.events:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        assert len(search.events) == 1
        waits = search.exclusions.answer(protocol.Exclude("w", "train", "a"))
        assert waits.reason == "not done yet: no space left"
        search.saver.behind = False
        return await asked

    assert asyncio.run(late()).shards == 1


def test_a_disk_that_fails_is_told_and_the_next_request_looks_again(search, monkeypatch):
    def fail(key):
        raise DiskError("cannot read the index")

    monkeypatch.setattr(search.index, "find", fail)
    assert "cannot read the index" in asyncio.run(answer(search, "a")).message
    monkeypatch.undo()
    assert asyncio.run(answer(search, "a")).units == 1


def test_a_start_names_the_shards_of_what_was_excluded_before_anybody_is_answered(search):
    async def start():
        excluded = search.train.excluded
        excluded.names.update([("b", 1)])
        excluded.numbers.add(2)
        search.exclusions.start()
        return list(search.events)

    assert asyncio.run(start()) == [HoldersFound("train", [3])]


def test_a_start_without_exclusions_looks_at_no_shard(search, monkeypatch):
    monkeypatch.setattr(Catalog, "holders", lambda *_: pytest.fail("shards are looked at"))
    search.exclusions.start()
    assert search.events == []


def test_a_start_whose_disk_fails_looks_until_it_does_not(search, monkeypatch):
    monkeypatch.setattr(exclusions, "_POLL", 0.001)
    find, failures = search.index.find, [DiskError("no"), DiskError("not yet")]

    def fail(key):
        if failures:
            raise failures.pop()
        return find(key)

    async def start():
        monkeypatch.setattr(search.index, "find", fail)
        excluded = search.train.excluded
        excluded.names.update([("b", 1)])
        search.exclusions.start()
        while len(search.events) < 2:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(start(), 20))
    assert search.events[1] == HoldersFound("train", [3])


def test_a_start_looks_again_for_what_was_excluded_before(search):
    async def start():
        search.train.excluded.names.update([("b", 1), ("gone", 0)])
        search.exclusions.start()
        while len(search.events) < 2:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(start(), 20))
    assert [unit.name for unit in search.events[0].units] == [("b", 1)]
    assert search.events[1] == HoldersFound("train", [3])


@pytest.mark.parametrize("numbers", [{2}, set()])
def test_a_start_lets_nothing_be_leased_before_all_that_holds_something_excluded_is_named(
    search, numbers
):
    """Where numbers are not known any more, as after the loss of the catalog, they are looked for."""

    async def start():
        search.train.excluded.names.update([("b", 1)])
        search.train.excluded.numbers |= numbers
        search.train.excluded.sought = True
        search.exclusions.start()
        at_once = list(search.events)
        while ExclusionsKnown("train") not in search.events:
            await asyncio.sleep(0.001)
        return at_once

    at_once = asyncio.run(asyncio.wait_for(start(), 20))
    named = HoldersFound("train", [3])
    assert search.events.index(named) < search.events.index(ExclusionsKnown("train"))
    assert at_once == ([named, ExclusionsKnown("train")] if numbers else [])


def test_a_start_that_cannot_ask_the_catalog_lets_nothing_be_leased_until_it_can(
    search, monkeypatch
):
    async def start():
        search.train.excluded.names.update([("b", 1)])
        search.train.excluded.numbers.add(2)
        search.train.excluded.sought = True
        with monkeypatch.context() as patch:
            patch.setattr(search.catalog, "holders", lambda *_: fail())
            search.exclusions.start()
            await asyncio.sleep(0)
            assert ExclusionsKnown("train") not in search.events
        while ExclusionsKnown("train") not in search.events:
            await asyncio.sleep(0.001)

    def fail():
        raise DiskError("cannot read the catalog")

    asyncio.run(asyncio.wait_for(start(), 20))
    assert HoldersFound("train", [3]) in search.events


def older(search, tmp_path, *keys: str, source: str = '["s3://another/"]') -> Index:
    """A listing that was used before, of these keys, and shard 4, which names its units by it."""
    before = Index.open(tmp_path, "train", source)
    before.append([ObjectInfo(key, 1) for key in keys])
    before.close()
    shard = Shard(ShardId("train", 4), "old", 1, 1, 1)
    search.catalog.save_progress(SavedPlan("train", {}, ()), shard=shard, units=[1])
    search.train.listings["old"] = before.id
    search.train.live.generations.append("old")
    search.train.live.superseded = lambda *but: np.array([4] if "old" not in but else [])
    return before


def test_shards_that_are_numbered_by_an_earlier_listing_are_found_by_that_listing(search, tmp_path):
    older(search, tmp_path, "c", "a", "b")
    assert asyncio.run(answer(search, "a")).shards == 2
    assert search.events[-1] == HoldersFound("train", [1, 4])
    assert asyncio.run(answer(search, "c")).shards == 1, (
        "unit 1 of the one is not unit 1 of the other"
    )


@pytest.mark.parametrize("loss", ["deleted", "damaged"])
def test_where_the_earlier_listing_is_lost_all_its_shards_are_taken_for_holders(
    search, tmp_path, loss
):
    path = older(search, tmp_path, "c", "a", "b").path
    if loss == "deleted":
        path.unlink()
    else:
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    asyncio.run(answer(search, "c"))
    assert search.events[-1] == HoldersFound("train", [2, 4])


def test_a_start_finds_what_only_an_earlier_listing_has(search, tmp_path):
    older(search, tmp_path, "c", "gone", source='["s3://another/"]')

    async def start():
        search.train.excluded.names.update([("gone", 0)])
        search.train.excluded.sought = True
        search.exclusions.start()
        while ExclusionsKnown("train") not in search.events:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(start(), 20))
    assert search.events == [HoldersFound("train", [4]), ExclusionsKnown("train")]
