"""A source that is listed again: what is new, rewritten, gone, or back, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd import indexing as module
from cachecd import relisting
from cachecd.doubt import Doubt
from cachecd.errors import RewrittenError, SourceUnreachableError
from cachecd.events import Event, Listed, ListingStopped, Relisted, SavePlan
from cachecd.executors.lister import Lister
from cachecd.indexing import Listing
from cachecd.indexroom import DatasetRoom
from cachecd.listings import keep_listed
from cachecd.marks import Marks
from cachecd.model import ObjectInfo
from cachecd.progress import Progress
from tests.test_listing import Source, Store, config_of, objects, one_by_one
from tests.test_listing_lanes import Laned
from tests.world import world


class Known(Source):
    def __init__(self, folder: Path, limit: int = 1 << 30) -> None:
        super().__init__(folder, limit=limit)
        self.held: set[int] = set()

    def relisted(self, store: Store | Laned, more: bool = False, judges: bool = False) -> Listing:
        self.doubts: list[str] = []
        listing = Listing(
            self.source,
            self.index,
            DatasetRoom(self.room, "train"),
            self._progressed,
            self.held.intersection,
            more_to_come=more,
            judges=judges,
            doubted=self.doubts.append,
        )
        sweep = store.sweep if isinstance(store, Laned) else lambda _: None
        asyncio.run(listing.go_on(store.list, sweep))
        return listing

    def gone_and_back(self, store: Store | Laned) -> tuple[list[int], list[int]]:
        found = self.relisted(store).gone
        assert found is not None
        return found[0].tolist(), found[1].tolist()


@pytest.fixture
def known(tmp_path: Path) -> Iterator[Callable[..., Known]]:
    yield from one_by_one(Known, tmp_path)


STORES = pytest.mark.parametrize("kind", [Store, Laned])


@STORES
def test_what_is_gone_is_known_across_restarts_and_comes_back_under_its_number(known, kind):
    one = known()
    assert one.relisted(kind(objects(5000))).gone is None
    numbers = {key: number for number, key in enumerate(one.keys())}
    fewer = [o for n, o in enumerate(objects(5000)) if n % 7]
    lost = sorted(numbers[o.key] for o in objects(5000)[::7])
    assert one.gone_and_back(kind(fewer)) == (lost, [])
    one = known()
    assert one.index.gone.numbers().tolist() == lost
    assert one.gone_and_back(kind(fewer)) == ([], [])
    assert one.gone_and_back(kind(objects(5500))) == ([], lost)
    assert {key: number for number, key in enumerate(one.keys()) if number < 5000} == numbers
    assert len(one.index) == 5500
    assert not known().index.gone.numbers().size


@STORES
def test_a_rewritten_object_is_a_unit_of_its_own_once_nothing_of_the_old_one_is_cached(known, kind):
    one = known()
    one.relisted(kind(objects(3000)))
    numbers = {key: number for number, key in enumerate(one.keys())}
    rewritten = [ObjectInfo(o.key, o.size + (n % 2), "f") for n, o in enumerate(objects(4))]
    now = rewritten + objects(3000)[4:]
    olds = [numbers[o.key] for o in rewritten]
    one.held = {olds[0], olds[3]}
    gone, back = one.gone_and_back(kind(now))
    assert (gone, back) == (sorted([olds[1], olds[2]]), [])
    new = [one.index.unit(n) for n in range(3000, len(one.index))]
    assert [(u.key, u.size, u.etag) for u in new] == [
        (o.key, o.size, "f") for o in sorted(rewritten[1:3], key=lambda o: o.key)
    ]
    assert one.index.unit(olds[1]).etag == "e"  # what is cut of it is never mixed with the new one
    one.held = set()
    assert one.gone_and_back(kind(now)) == (sorted([olds[0], olds[3]]), [])
    assert len(one.index) == 3004
    assert one.gone_and_back(kind(now)) == ([], [])
    assert len(one.index) == 3004


@STORES
def test_a_start_at_another_store_leaves_no_trace_in_the_index_and_is_in_doubt_before_its_end(
    known, kind
):
    one = known()
    one.relisted(kind(objects(5000)))
    size = one.index.path.stat().st_size
    others = [ObjectInfo(o.key, o.size, "another") for o in objects(5000)[:2600]]
    strangers = [ObjectInfo(f"{o.key}!", o.size, "e") for o in objects(5000)]
    wrong = sorted(others + objects(5000)[2600:] + strangers, key=lambda o: o.key)
    with pytest.raises(RewrittenError, match="2600 of the 5000 objects"):
        one.relisted(kind(wrong), judges=True)
    assert one.doubts
    assert (len(one.index), one.index.path.stat().st_size) == (5000, size)
    assert one.relisted(kind(objects(5000)), judges=True).gone is not None


def test_the_verdict_falls_at_the_end_whatever_the_listing_begins_with(known):
    one = known()
    one.relisted(Store(objects(5000)))
    others = [ObjectInfo(o.key, o.size, "another") for o in objects(5000)[:2400]]
    gone = one.relisted(Store(others + objects(5000)[2400:]), judges=True).gone
    assert one.doubts, "it begins with objects that are all rewritten"
    assert gone is not None
    assert (len(gone[0]), len(one.index)) == (2400, 7400)


def test_after_a_listing_that_was_refused_the_next_try_begins_anew(known):
    one = known()
    one.relisted(Store(objects(50)))
    listing = Listing(
        one.source, one.index, DatasetRoom(one.room, "train"), one._progressed, judges=True
    )
    others = [ObjectInfo(o.key, o.size, "another") for o in objects(50)]
    for _ in range(2):
        with pytest.raises(RewrittenError, match="50 of the 50"):
            asyncio.run(listing.go_on(Store(others).list))
    asyncio.run(listing.go_on(Store(objects(51)).list))
    assert len(one.index) == 51


def test_rewritten_objects_that_are_too_many_to_wait_for_the_verdict_are_listed_once_more(
    known, monkeypatch
):
    monkeypatch.setattr(relisting, "_MOST_WAITING", 100)
    one = known()
    one.relisted(Store(objects(5000)))
    now = [ObjectInfo(o.key, o.size, "f") for o in objects(2000)] + objects(5000)[2000:]
    gone = one.relisted(Store(now), judges=True).gone
    assert gone is not None
    assert (len(gone[0]), len(one.index)) == (2000, 7000)


def test_a_listing_that_fails_in_its_middle_takes_nothing_for_gone(known):
    one = known()
    one.relisted(Store(objects(5000)))
    listing = Listing(
        one.source, one.index, DatasetRoom(one.room, "train"), one._progressed, lambda _: ()
    )
    store = Store(objects(4000), faults=[3])
    with pytest.raises(SourceUnreachableError):
        asyncio.run(listing.go_on(store.list))
    assert listing.gone is None
    assert not one.index.gone.numbers().size
    asyncio.run(listing.go_on(store.list))
    assert listing.gone is not None
    assert listing.gone[0].tolist() == list(range(4000, 5000))


@STORES
def test_a_source_that_is_empty_of_a_sudden_is_not_believed(known, kind):
    one = known()
    one.relisted(kind(objects(3000)))
    with pytest.raises(SourceUnreachableError, match="the source is empty, 3000 units were listed"):
        one.relisted(kind([]))
    assert not one.index.gone.numbers().size


def test_without_room_new_objects_are_left_out_and_what_is_gone_is_noticed(known):
    one = known(limit=4 << 20)
    one.relisted(Store(objects(3000)))
    one.ledger.adopt("train", one.ledger.room - 60_000)
    listing = one.relisted(Store(objects(9000, begin=10), page=6000), more=True)
    assert "new objects are not taken up: the listing waits for room" in listing.left_out
    assert len(one.index) == 3000
    assert listing.gone is not None
    assert listing.gone[0].tolist() == list(range(10))


# --- while the daemon runs


def test_it_is_listed_again_and_again_and_a_failure_is_told_and_tried_again(known, monkeypatch):
    one, fed, pauses = known(), [], []
    stores = [objects(2000), objects(2500), objects(2500, begin=1)]
    faults = [[], [2], []]
    store = Store([], [])

    class EnoughError(Exception):
        pass

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if not stores:
            raise EnoughError
        if not isinstance(fed[-1], ListingStopped):
            store.found, store.faults = stores.pop(0), faults.pop(0)

    store.found, store.faults = stores.pop(0), faults.pop(0)
    lister = Lister(8)
    monkeypatch.setattr(lister, "units", lambda _, after: store.list(after))
    monkeypatch.setattr(lister, "sweep", lambda _, lanes: store.sweep(lanes))
    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    progress = Progress()
    about = one.index, DatasetRoom(one.room, "train"), lambda _: (), progress
    with pytest.raises(EnoughError):
        asyncio.run(keep_listed("train", config_of(one, relist=600.0), lister, *about, fed.append))
    kinds: list[type[Event]] = [type(event) for event in fed if event != fed[0]]
    assert kinds.count(ListingStopped) == 1
    stopped = next(event for event in fed if isinstance(event, ListingStopped))
    assert (stopped.stuck, stopped.down) == (False, False)  # sampling goes on
    relisted = [event for event in fed if isinstance(event, Relisted)]
    assert [(len(e.gone), len(e.back)) for e in relisted] == [(0, 0), (1, 0)]
    assert isinstance(fed[-1], Listed)
    assert len(one.index) == 2500
    assert sorted(pauses)[-3:] == pytest.approx([600.0] * 3, abs=30)
    told = progress.status(progress.ended + 5.0)
    assert (told["running"], told["objects"], told["failed"]) == (False, 2499, "")
    assert told["ended_ago_s"] == 5.0


def test_units_that_are_gone_are_not_handed_out_until_they_are_back():
    w = world()
    plan = w.state.datasets["train"].plan
    free = plan.missing_bytes
    plan.set_aside([2])
    out = w.state.handle(Relisted("train", np.array([0, 1, 2]), np.zeros(0, int)), 0.0)
    # What the listing knows better needs no row of its own.
    assert next(command for command in out if isinstance(command, SavePlan)).again == (2,)
    assert (plan.num_gone, plan.num_aside) == (3, 0)
    assert plan.missing_bytes < free
    w.state.handle(Relisted("train", np.zeros(0, int), np.array([0, 1, 2])), 0.0)
    assert (plan.num_gone, plan.missing_bytes) == (0, free)


@settings(deadline=None)
@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)), st.integers(0, 41))
def test_marks_are_a_set(gone, seen, end):
    mine, theirs = Marks(), Marks()
    mine.toggle(np.array(sorted(gone), np.int64))
    theirs.add(np.array(sorted(seen), np.int64))
    assert mine.numbers().tolist() == sorted(gone)
    neither, both = mine.changes(theirs, end)
    assert neither.tolist() == [n for n in range(end) if n not in gone | seen]
    assert both.tolist() == [n for n in range(end) if n in gone & seen]
    mine.toggle(np.array(sorted(gone), np.int64))
    assert mine.numbers().tolist() == []


# --- fetching while it is not known whether the store is the one before


def test_a_first_run_fetches_while_it_lists():
    doubt = Doubt()
    doubt.begin(complete=False)
    assert (doubt.reason, doubt.unsure) == ("", False)
    assert doubt.ended(complete=True), "to be saved"
    assert not doubt.ended(complete=True)


def test_a_later_run_fetches_while_it_compares_until_the_listing_shows_another_store():
    doubt = Doubt(known=True)
    doubt.begin(complete=True)
    assert (doubt.reason, doubt.unsure) == ("", True)
    doubt.raised("200 of 300")
    doubt.unlisted()
    assert doubt.reason == "200 of 300", "that the store is not to be listed any more shows nothing"
    doubt.ended(complete=True)
    assert (doubt.reason, doubt.unsure) == ("", False)


def test_a_new_generation_waits_for_its_first_listing_but_not_for_a_store_that_cannot_be_listed():
    doubt = Doubt()
    for listed in (True, False):
        doubt.begin(complete=True)
        assert doubt.reason
        if listed:
            doubt.ended(complete=False)
        else:
            doubt.unlisted()
        assert doubt.reason == ""
