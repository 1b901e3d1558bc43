"""Rotation: figures worked out by hand. Shards have 10 bytes; the share is 100, of which 90 are live."""

from dataclasses import replace

from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.rotation import Boundary, Rotation
from cachecd.policy.values import Rules
from tests.policy.cache import FOOTPRINT, A, Cache, a_full_cache

FULL = Boundary(
    now=0,
    rules=Rules("a", "one", first=20, shard_size=10),
    live=90,
    shards=9,
    occupied=90,
    share=100,
    first=20,
    footprint=10,
    full=True,
    feeds=True,
)
OLDEST = [(number, 10) for number in range(9)]


def refreshing(refresh):
    return replace(FULL, rules=FULL.rules._replace(refresh=refresh))


def retired(rotation, boundary=FULL, oldest=OLDEST):
    return rotation.boundary(boundary, oldest)


def test_page_of_the_listing_retires_the_oldest_shards_before_what_was_delivered():
    cache = a_full_cache()
    lease = cache.acquire(0).lease
    cache.hold(lease)
    oldest, page = cache.live()[0], 8 * FOOTPRINT // 2
    assert not granted(cache, page)
    assert cache.live()[0] == oldest, "a lease is held"
    second = cache.acquire(1).lease  # nothing was delivered
    assert oldest not in cache.live()
    cache.hold(second)
    cache.end(second)
    for epoch in range(2, 8):
        cache.end(lease)
        lease = cache.acquire(epoch).lease
        cache.hold(lease)
    cache.end(lease)
    assert granted(cache, page)


def test_page_of_the_listing_gets_room_at_once_if_no_lease_is_held():
    cache = a_full_cache()
    assert not granted(cache, FOOTPRINT)
    cache.run()
    assert granted(cache, FOOTPRINT), "no shard took the room"


def test_page_that_is_being_written_counts_until_a_later_measurement_has_it():
    cache = Cache(units=0, limit=1000)
    assert cache.policy.reserve(A, 900, 0, must_fit=True)
    for _ in range(3):
        cache.send(ev.Measured(0, 100_000))  # it began while the page was being written
        assert not cache.policy.room.fits(101_000)
    cache.policy.reserve(A, 1, 900, must_fit=True)  # the page is written
    cache.send(ev.Measured(0, 100_000))
    assert cache.policy.room._written >= 900
    cache.send(ev.Measured(900, 100_000))
    assert cache.policy.room._written == 1


def granted(cache: Cache, size: int) -> bool:
    is_reserved = cache.policy.reserve(A, size, 0, must_fit=True)
    cache.send(ev.Tick())
    cache.run()
    return is_reserved


def test_floor_keeps_three_quarters_of_the_share():
    # The floor is 75: 90 - 75 = 15 may go, one shard.
    assert retired(Rotation(sealed=90, delivered=90)) == [0]


def test_first_is_a_floor_too():
    # max(first 70, 0) leaves 20.
    boundary = replace(refreshing(1.0), first=70)
    assert retired(Rotation(sealed=90, delivered=90), boundary) == [0, 1]


def test_no_more_goes_than_was_sealed():
    boundary = refreshing(1.0)
    assert retired(Rotation(sealed=30, delivered=90), boundary) == [0, 1, 2]


def test_twice_the_last_goes_once_it_was_refilled():
    boundary = refreshing(1.0)
    refilled = Rotation(sealed=0, refilled=20, last=20, delivered=90)
    assert retired(refilled, boundary) == [0, 1, 2, 3]
    not_refilled = Rotation(sealed=0, refilled=19, last=20, delivered=90)
    assert retired(not_refilled, boundary) == [0]


def test_no_more_goes_than_was_delivered():
    boundary = refreshing(1.0)
    assert retired(Rotation(sealed=90, delivered=29), boundary) == [0, 1]
    assert retired(Rotation(sealed=90, delivered=9), boundary) == []


def test_delivered_bytes_add_up_until_something_goes():
    rotation = Rotation(sealed=90, delivered=6)
    assert retired(rotation) == []
    rotation.delivered += 6
    assert retired(rotation) == [0]
    assert (rotation.delivered, rotation.last) == (0, 10)


def test_nothing_goes_while_there_is_room():
    assert retired(Rotation(sealed=90, delivered=90), replace(FULL, full=False)) == []


def test_nothing_goes_if_nothing_replaces_it():
    assert retired(Rotation(sealed=90, delivered=90), replace(FULL, feeds=False)) == []


def test_one_shard_goes_at_the_floor():
    # live 76, floor 75: the one shard that may always go.
    assert retired(Rotation(sealed=90, delivered=90), replace(FULL, live=76)) == [0]


def test_last_shard_stays():
    boundary = replace(FULL, shards=1, live=10, occupied=90, share=30)
    assert retired(Rotation(sealed=90, delivered=90), boundary, OLDEST[:1]) == []


def test_above_the_share_unread_shards_go_down_to_it():
    # 90 - 75 = 15 too much, refresh x 90 = 22: two shards go.
    assert retired(Rotation(), replace(FULL, share=75)) == [0, 1]


def test_above_the_share_no_more_than_refresh_goes_at_once():
    # 60 too much, but refresh x 90 = 22.5: the third shard goes beyond it.
    assert retired(Rotation(), replace(FULL, share=30)) == [0, 1, 2]


# --- over restarts


def stop(cache):
    cache.send(ev.Draining())
    cache.run()


def test_after_a_clean_stop_what_was_delivered_still_counts():
    cache = a_full_cache(refresh=0.5, first=1)
    before, old = cache.live(), cache.epoch(0)
    stop(cache)
    cache.start()
    cache.end(old)
    cache.acquire(1)
    assert cache.live()[0] > before[0], "the oldest went"


def test_refused_figures_are_written_later_as_they_are_then():
    cache = a_full_cache(refresh=0.5, first=1)
    lease = cache.epoch(0)
    cache.send(ev.AcquireAsked("r", "a", "job", 1))
    [refused] = cache.under_way(do.KeepFigures)
    cache.pending.remove(refused)
    cache.send(ev.DiskRefused(refused, "no space left"))
    assert not cache.under_way(do.KeepFigures), "after a pause"
    cache.send(ev.Delivered(lease, 1.0))
    cache.now += 5
    cache.send(ev.Tick())
    [again] = cache.under_way(do.KeepFigures)
    assert refused.figures["delivered"] == 0 < again.figures["delivered"]
