"""Listing a source: sampled before it ends, gone on with after a fault, bounded if it has no end."""

from __future__ import annotations

import asyncio
import http.client
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cachecd import listings as module
from cachecd.config import DatasetConfig, SourceConfig
from cachecd.errors import DiskError, LimitTooSmallError, NoRoomError, SourceUnreachableError
from cachecd.events import Event, Listed, ListingStopped
from cachecd.executors.lister import Lister
from cachecd.index import Index, drop_unused
from cachecd.indexing import CircleError, Listing, _lanes_at
from cachecd.indexroom import DatasetRoom, IndexRoom
from cachecd.ledger import METADATA_SLACK, Ledger
from cachecd.listings import keep_listed
from cachecd.model import ObjectInfo
from cachecd.listing.progress import Progress
from cachecd.sampler.lanes import Lanes
from cachecd.listing.selection import Takes

PLAIN = {"url": "s3://bucket/train/", "format": "files"}
LABELLED = {**PLAIN, "label": {"pattern": r"class-(\d+)/"}}
GIVEN = {**PLAIN, "label": {"pattern": r"class-(\d+)/", "classes": ["1", "0"]}}


def objects(count: int, begin: int = 0) -> list[ObjectInfo]:
    return [ObjectInfo(f"class-{n // 700}/{n:06d}", n, "e") for n in range(begin, count)]


class Store:
    """Lists `found` in pages; each listing fails after as many as `faults` says. `asked`: from where."""

    def __init__(self, found: list[ObjectInfo], faults: list[int] | None = None, page: int = 500):
        self.found, self.faults, self.page = found, faults or [], page
        self.asked: list[str] = []
        self.named = 0

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        self.asked.append(start_after)
        fault = self.faults.pop(0) if self.faults else -1
        there = [o for o in self.found if o.key > start_after]
        for nth, start in enumerate(range(0, len(there), self.page)):
            if nth == fault:
                raise SourceUnreachableError("cannot resolve the store's host name")
            page = there[start : start + self.page]
            self.named += len(page)
            yield page
        if fault >= len(there) / self.page:
            raise SourceUnreachableError("the connection broke at the end")

    def sweep(self, _: Lanes) -> None:
        """It has one lane."""


class Source:
    def __init__(
        self, folder: Path, keys: dict = PLAIN, limit: int = 1 << 30, least: int = 0
    ) -> None:
        self.source = SourceConfig.model_validate(keys)
        self.index = Index.open(folder, "train", "s", early=not self.source.awaits_classes)
        self.ledger = Ledger(limit, 1)
        self.room = IndexRoom(self.ledger, least, self._measure)
        self.takes: Takes | None = None
        self.seen: list[int] = []  # what could be walked each time there was more of it

    def _measure(self) -> None:
        self.ledger.measured(self.index.allocated + self.room.ahead, float("inf"))

    def listing(self) -> Listing:
        room = DatasetRoom(self.room, "train")
        return Listing(self.source, self.index, room, self._progressed, takes=self.takes)

    def _progressed(self) -> None:
        self.seen.append(self.index.ends[-1])

    def list(self, store: Store) -> None:
        asyncio.run(self.listing().go_on(store.list))

    def keys(self) -> list[str]:
        return [key for key, _ in self.index.labelled()]


def one_by_one(kind: type[Source], folder: Path) -> Iterator[Callable[..., Any]]:
    """Makes a source, and closes the one before it: as a new process finds the folder."""
    opened: list[Source] = []

    def make(*arguments: Any, **sizes: int) -> Source:
        for one in opened:
            one.index.close()
        opened.append(kind(folder, *arguments, **sizes))
        return opened[-1]

    yield make
    for one in opened:
        one.index.close()


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Callable[..., Source]]:
    yield from one_by_one(Source, tmp_path)


def test_units_may_be_walked_while_the_store_has_not_answered_for_the_next_page(source):
    one, progressed = source(), threading.Event()

    class Slow(Store):
        def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
            for nth, page in enumerate(super().list(start_after)):
                assert nth != 1 or progressed.wait(20)
                yield page

    async def listed() -> None:
        listing = one.listing()
        listing._progressed = lambda: (one._progressed(), progressed.set())
        await listing.go_on(Slow(objects(10_000), page=1000).list)

    asyncio.run(listed())
    assert one.seen[0] == 1000
    assert one.index.ends == (1000, 2000, 4000, 8000, 10_000)


def test_of_a_source_with_labels_nothing_is_walked_before_all_classes_are_known(source):
    one = source(LABELLED)
    with pytest.raises(SourceUnreachableError):
        one.list(Store(objects(5000), faults=[6]))
    assert (one.seen, one.index.ends, len(one.index)) == ([], (), 3000)
    one = source(LABELLED)
    one.list(Store(objects(5000)))
    assert (one.index.ends, one.index.classes) == ((5000,), tuple("01234567"))


def test_of_a_part_of_a_source_the_classes_are_those_of_all_and_nothing_goes_round_in_circles(
    source,
):
    one = source(LABELLED)
    one.takes = lambda unit: unit.key.endswith("7")
    one.list(Store(objects(30_000)))
    assert len(one.index) == 3000
    assert one.index.classes == tuple(map(str, range(43)))


def test_of_a_source_whose_classes_are_given_all_is_walked_as_it_comes_and_none_is_looked_for(
    source,
):
    one = source(GIVEN)
    one.list(Store(objects(5000)))
    assert one.index.ends == (1000, 2000, 4000, 5000)
    assert one.index.classes == ()


def test_classes_given_in_the_middle_of_a_listing_let_what_is_listed_be_walked_and_it_goes_on(
    source,
):
    one, store = source(LABELLED), Store(objects(5000), faults=[6])
    with pytest.raises(SourceUnreachableError):
        one.list(store)
    one = source(GIVEN)
    assert one.index.ends == (1000, 2000)
    one.list(store)
    assert store.asked == ["", objects(3000)[-1].key]


def test_classes_that_are_given_no_more_are_found_and_numbered_by_their_names(source):
    source(GIVEN).list(Store(objects(5000)))
    one = source(LABELLED)
    one.list(Store(objects(5000)))
    one = source(LABELLED)
    assert (one.index.ends, one.index.classes) == ((5000,), tuple("01234567"))


def test_a_listing_that_fails_goes_on_after_its_last_page(source):
    one, store = source(), Store(objects(5000), faults=[3, 0, 2])
    listing = one.listing()
    for _ in range(3):
        with pytest.raises(SourceUnreachableError):
            asyncio.run(listing.go_on(store.list))
    asyncio.run(listing.go_on(store.list))
    assert store.asked == ["", *(objects(5000)[n - 1].key for n in (1500, 1500, 2500))]
    assert store.named == 5000
    assert one.keys() == [o.key for o in objects(5000)]


def test_a_listing_that_was_killed_goes_on_after_what_is_on_disk(source):
    one, store = source(), Store(objects(5000), faults=[7])
    with pytest.raises(SourceUnreachableError):
        one.list(store)
    one = source()
    assert len(one.index) == 3500
    one.list(store)
    assert store.asked == ["", objects(5000)[3499].key]
    assert one.keys() == [o.key for o in objects(5000)]


def test_a_source_that_is_complete_is_listed_from_the_beginning_and_only_what_is_new_is_added(
    source,
):
    known = [o for n, o in enumerate(objects(9000)) if n % 100]
    source().list(Store(known))
    one, store = source(), Store(objects(9000), faults=[2])
    listing = one.listing()
    with pytest.raises(SourceUnreachableError):
        asyncio.run(listing.go_on(store.list))
    asyncio.run(listing.go_on(store.list))
    assert store.asked == ["", objects(1000)[-1].key]
    assert one.keys() == [o.key for o in known] + [o.key for o in objects(9000)[::100]]
    assert one.index.ends == (1000, 2000, 4000, 8000, 8910, 9000)


@pytest.mark.parametrize("order", [1, 2])
def test_a_store_without_an_order_is_listed_again_and_each_object_once(source, order):
    shuffled = objects(8000)
    random.Random(order).shuffle(shuffled)

    class Unordered(Store):
        def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
            assert not start_after
            return super().list()

    one, store = source(), Unordered(shuffled, faults=[9, 13])
    listing = one.listing()
    for _ in range(2):
        with pytest.raises(SourceUnreachableError):
            asyncio.run(listing.go_on(store.list))
    one = source()
    one.list(store)
    assert one.keys() == [o.key for o in shuffled]


@pytest.mark.parametrize("keys", [PLAIN, LABELLED], ids=["plain", "labelled"])
def test_wherever_it_was_interrupted_the_index_and_its_blocks_are_the_same(source, keys):
    chance = random.Random(5)
    for _ in range(5):
        one = source(keys)
        Path(one.index.path).unlink()
        store = Store(objects(4321), [chance.randint(0, 9) for _ in range(6)], page=300)
        one = source(keys)
        while not one.index.complete:
            try:
                one.list(store)
            except SourceUnreachableError:
                one = source(keys)
        assert [one.index.unit(n).key for n in range(4321)] == [o.key for o in objects(4321)]
        assert one.index.ends == ((4321,) if keys is LABELLED else (1000, 2000, 4000, 4321))
        assert one.index.classes == (tuple("0123456") if keys is LABELLED else ())


# --- a listing without an end


def test_the_same_page_again_is_noticed_at_once(source):
    class Stuck(Store):
        def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
            while True:
                yield objects(1000)

    one = source()
    with pytest.raises(CircleError, match="the same page twice in a row"):
        one.list(Stuck([]))
    assert one.index.ends == (1000,)


def test_empty_pages_without_end_are_noticed(source):
    class Empty(Store):
        def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
            yield from super().list()
            while True:
                yield []

    one = source()
    with pytest.raises(CircleError, match="1001 pages with nothing in them"):
        one.list(Empty(objects(1500)))
    assert len(one.index) == 1500


def test_pages_that_come_again_and_again_are_noticed(source):
    class Circle(Store):
        def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
            while True:
                yield from super().list()

    one = source()
    with pytest.raises(CircleError, match="of which only 3000 differ: its listing goes round"):
        one.list(Circle(objects(3000)))
    assert len(one.index) == 3000
    listing = one.listing()
    for _ in range(2):  # and again each time it is tried
        with pytest.raises(CircleError):
            asyncio.run(listing.go_on(Circle(objects(3000)).list))
    asyncio.run(listing.go_on(Store(objects(3500)).list))
    assert len(one.index) == 3500


class Endless(Store):
    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        begin = int(start_after[-6:]) + 1 if start_after else 0
        while True:
            yield objects(begin + 500, begin)
            begin += 500


def test_a_listing_without_end_leaves_the_shards_what_they_need(source):
    one = source(limit=3 << 20, least=1 << 20)
    with pytest.raises(LimitTooSmallError, match="unless the source's listing has no end"):
        one.list(Endless([]))
    assert len(one.index) > 4000
    assert one.ledger.room >= 1 << 20
    assert one.room.ahead == 0


def test_while_shards_have_the_room_some_of_what_they_give_back_is_kept_for_the_index(source):
    one = source(limit=3 << 20)
    one.ledger.adopt("train", (2 << 20) - 20_000)
    listing = one.listing()
    with pytest.raises(NoRoomError, match="waits for room"):
        asyncio.run(listing.go_on(Store(objects(3000)).list))
    assert one.ledger.room < 0  # no shard is begun before the index has had its part
    assert len(one.index) == 0
    one.ledger.free("train", (2 << 20) - 20_000)
    asyncio.run(listing.go_on(Store(objects(3000)).list))
    assert len(one.index) == 3000
    assert one.room.ahead == 0


def test_a_disk_that_fails_keeps_no_room(source, monkeypatch):
    one = source()

    def failing(*_: object, **__: object) -> int:
        raise DiskError("cannot extend")

    monkeypatch.setattr(one.index, "append", failing)
    with pytest.raises(DiskError):
        one.list(Store(objects(3000)))
    assert one.room.ahead == 0


# --- until it has succeeded


def config_of(one: Source, **more: Any) -> DatasetConfig:
    return DatasetConfig.model_validate({"source": one.source.model_dump(mode="json"), **more})


def keep(one: Source, store: Store, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """What is fed until the listing is complete; pauses take no time and are in `monkeypatch`."""
    fed: list[Event] = []
    lister = Lister(8)
    monkeypatch.setattr(lister, "units", lambda _, after: store.list(after))
    monkeypatch.setattr(lister, "sweep", lambda _, lanes: store.sweep(lanes))
    monkeypatch.setattr(module.random, "uniform", lambda low, high: 0)
    room = DatasetRoom(one.room, "train")
    about = one.index, room, lambda _: (), Progress()
    asyncio.run(keep_listed("train", config_of(one), lister, *about, fed.append))
    return fed


def test_failures_are_told_and_what_is_listed_may_be_walked_meanwhile(source, monkeypatch):
    fed = keep(source(), Store(objects(2500), faults=[3]), monkeypatch)
    assert [type(event) for event in fed] == [Listed, ListingStopped, Listed, Listed]
    assert fed[0] == Listed("train", complete=False)
    assert fed[1] == ListingStopped("train", "cannot resolve the store's host name", down=True)
    assert fed[-1] == Listed("train", complete=True, fresh=True)


@pytest.mark.parametrize(
    "error",
    [
        http.client.IncompleteRead(b""),
        EOFError("421 too many"),
        KeyError("token"),
        RuntimeError("x"),
    ],
    ids=repr,
)
def test_whatever_a_stores_library_raises_is_told_and_tried_again(source, monkeypatch, error):
    store, listed = Store(objects(2500)), 0
    plain = store.list

    def failing(start_after: str = "") -> Iterator[list[ObjectInfo]]:
        nonlocal listed
        listed += 1
        if listed == 1:
            yield objects(500)
            raise error
        yield from plain(start_after)

    monkeypatch.setattr(store, "list", failing)
    monkeypatch.setattr(store, "sweep", lambda lanes: None)
    fed = keep(source(), store, monkeypatch)
    (stopped,) = [event for event in fed if isinstance(event, ListingStopped)]
    assert type(error).__name__ in stopped.reason
    assert fed[-1] == Listed("train", complete=True, fresh=True)


@pytest.mark.parametrize("frontier", ["no JSON", "{}", '{"lanes": [{"other": 1}]}', "[]"])
def test_a_place_that_another_release_saved_otherwise_is_listed_from_the_beginning(frontier):
    assert [ask.after for ask in _lanes_at(frontier).asks] == [""]


def test_a_listing_that_gets_nowhere_is_stuck_after_a_while(source, monkeypatch):
    fed = keep(source(), Store(objects(2500), faults=[3, 0, 0, 0, 0, 0, 1]), monkeypatch)
    stopped = [event.stuck for event in fed if isinstance(event, ListingStopped)]
    assert stopped == [False] * 4 + [True, True, False]


def test_an_index_that_is_complete_stays_so_while_it_is_listed_again(source, monkeypatch):
    source().list(Store(objects(2500)))
    fed = keep(source(), Store(objects(6000), faults=[3]), monkeypatch)
    assert {event.complete for event in fed if isinstance(event, Listed)} == {True}


def test_a_listing_that_nobody_uses_makes_room_for_the_one_that_is_made(tmp_path):
    unused = Index.open(tmp_path, "train", "another source")
    unused.append(objects(20_000))
    unused.close()
    room_for_one = METADATA_SLACK + unused.path.stat().st_blocks * 512 * 3 // 2
    one = Source(tmp_path, PLAIN, room_for_one)

    def measure() -> None:
        there = sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir())
        one.ledger.measured(there + one.room.ahead, float("inf"))

    def drop() -> bool:
        return drop_unused(tmp_path, {one.index.path}) is not None

    one.room = IndexRoom(one.ledger, 0, measure, drop)
    asyncio.run(one.listing().go_on(Store(objects(20_000)).list))
    assert len(one.index) == 20_000
    assert not unused.path.exists()
    one.index.close()
