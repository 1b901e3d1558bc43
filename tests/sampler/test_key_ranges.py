"""A listing by several requests at a time: what is asked for, and in which order it comes."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd.errors import SourceUnreachableError
from cachecd.model import ObjectInfo
from cachecd.stores.backend import TransientError
from cachecd.stores.key_ranges import WINDOW, Ask, KeyPage, Lanes, OutOfOrderError
from cachecd.stores.retry import Retry
from cachecd.stores.sweep import ListingSweep

CHANCE = random.Random(7)
LAYOUTS = {
    "one folder": [f"img_{n:07d}.jpg" for n in range(40_000)],
    "folders": [f"class_{n % 250:04d}/img_{n:06d}.jpg" for n in range(40_000)],
    "hashes": [f"{CHANCE.getrandbits(128):032x}" for _ in range(40_000)],
    "not ASCII": [f"données/{CHANCE.choice('日本語文字')}{n:05d}\U0001f600" for n in range(40_000)],
    "one large among small": [f"b/{n:08d}" for n in range(40_000)]
    + [f"{letter}/x" for letter in "acdefgh"],
}


class Store:
    """Lists these keys in their order, or as its `order` says; `asked` are all requests."""

    def __init__(self, keys: list[str], order: Callable[[str], object] = lambda key: key) -> None:
        self.order = order
        self.keys = sorted(keys, key=order)  # type: ignore[arg-type]
        self.asked: list[Ask] = []

    def page(self, ask: Ask) -> KeyPage:
        self.asked.append(ask)
        begin = bisect_right(self.keys, self.order(ask.after), key=self.order) if ask.after else 0
        end = begin + ask.most
        return KeyPage([ObjectInfo(k, len(k)) for k in self.keys[begin:end]], end < len(self.keys))


def listed(store: Store, lanes: Lanes | None = None) -> Iterator[str]:
    lanes = lanes or Lanes()
    while lanes.asks:
        yield from [found.key for found in lanes.answer(store.page(lanes.asks[0]))]


def round_trips(store: Store) -> int:
    """How long it takes if an answer takes one, and all that is asked for is asked for at once."""
    lanes, now, due = Lanes(), 0, []
    while lanes.asks:
        due += [now + 1] * (len(lanes.asks) - len(due))
        now = max(now, due.pop(0))
        lanes.answer(store.page(lanes.asks[0]))
    return now


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_large_listing_takes_a_fraction_of_the_round_trips_and_hardly_more_requests(layout):
    keys = LAYOUTS[layout]
    store = Store(keys)
    assert round_trips(store) <= len(keys) // 1000 * 2 // 3
    assert sum(ask.most for ask in store.asked) <= 2.5 * len(keys)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_object_is_listed_once_and_the_first_are_of_all_over_the_source(layout):
    keys = sorted(LAYOUTS[layout])
    found = list(listed(Store(keys)))
    assert sorted(found) == keys
    places = sorted(bisect_right(keys, key) for key in found[:1000])
    assert places[-1] > 5_000
    assert len(set(places[::64])) >= 15


@settings(deadline=None, max_examples=25)
@given(
    st.sets(
        st.text(st.characters(codec=None), min_size=1, max_size=6)
        | st.from_regex(r"[ab]{0,3}/[0-9]{1,3}", fullmatch=True),
        min_size=0,
        max_size=300,
    ),
    st.integers(1, 20),
)
def test_whatever_the_keys_each_is_listed_once(keys, divisor):
    """`divisor`: of the pages' sizes, so that there are many."""
    store = Store(list(keys))
    whole = store.page
    store.page = lambda ask: whole(ask._replace(most=-(-ask.most // (10 * divisor))))  # type: ignore[method-assign]
    assert sorted(listed(store)) == sorted(keys)


# --- stores that cannot be listed so


def test_a_store_that_does_not_go_on_after_a_key_is_found_out():
    store = Store(LAYOUTS["folders"])
    whole = store.page
    store.page = lambda ask: whole(ask._replace(after=""))  # type: ignore[method-assign]
    with pytest.raises(OutOfOrderError):
        list(listed(store))


@pytest.mark.parametrize("names", [["a", "a-b"], ["train", "train-extra", "train.old"]])
def test_a_store_that_lists_folder_by_folder_is_found_out_before_anything_is_missed(names):
    keys = [f"{name}/{n:05d}" for name in names for n in range(20_000)]
    store = Store(keys, order=lambda key: key.split("/"))
    try:
        found = list(listed(store))
    except OutOfOrderError:
        return
    assert sorted(found) == sorted(keys)


# --- read from a store


class Flaky(Store):
    """Fails as it is told."""

    def __init__(self, keys: list[str], faults: list[TransientError | None]) -> None:
        super().__init__(keys)
        self.faults = faults

    def page(self, ask: Ask) -> KeyPage:
        if self.faults and (fault := self.faults.pop(0)):
            raise fault
        return super().page(ask)


QUICK = Retry(tries=3, within=20.0, first=0.001, longest=0.002)
PATIENT = Retry(tries=1000, within=20.0, first=0.001, longest=0.002)


def swept(store: Store, connections: int = WINDOW, lanes: Lanes | None = None) -> list[str]:
    sweep = ListingSweep(store.page, lanes or Lanes(), "s3://b/", connections, PATIENT)
    found: list[str] = []
    while (page := sweep.next()) is not None:
        found += [o.key for o in page]
    sweep.close()
    return found


@pytest.mark.parametrize("connections", [1, 3, 64])
def test_the_order_is_the_same_however_many_requests_and_whatever_fails(connections):
    keys = LAYOUTS["hashes"][:20_000]
    faults = [TransientError("reset"), None, TransientError("slow down", throttled=True), None]
    store = Flaky(keys, faults * 8)
    assert swept(store, connections) == list(listed(Store(keys)))


def test_what_fails_again_and_again_is_told_and_another_sweep_goes_on():
    keys = LAYOUTS["folders"]
    store = Flaky(keys, [])
    lanes = Lanes()
    sweep = ListingSweep(store.page, lanes, "s3://b/", WINDOW, QUICK)
    found: list[str] = []
    while len(found) < 10_000:
        page = sweep.next()
        assert page is not None
        found += [o.key for o in page]
    store.faults = [TransientError("cannot connect") for _ in range(10_000)]
    with pytest.raises(SourceUnreachableError, match="s3://b/: cannot connect"):
        found.extend(o.key for page in iter(sweep.next, None) for o in page)
    sweep.close()
    store.faults = []
    assert found + swept(store, lanes=lanes) == list(listed(Store(keys)))
