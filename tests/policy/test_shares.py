"""Shares: figures worked out by hand."""

import math

from cachecd.policy.shares import Claim, first_bytes, need, shares

GIB = 1 << 30


def claim(name, most=math.inf, **fields):
    return Claim(name, fields.pop("first", 10), fields.pop("footprint", 2), most, **fields)


def test_datasets_without_end_divide_equally():
    assert shares(100, [claim("a"), claim("b")]) == {"a": 50, "b": 50}


def test_what_one_cannot_use_is_divided_among_others():
    assert shares(90, [claim("a", 10), claim("b"), claim("c")]) == {"a": 10, "b": 40, "c": 40}


def test_dataset_with_limit_takes_it_before_equal_division():
    # 100 - 70 = 30 for the two others; 70 leaves them their least, 4 x 2 each.
    claims = [claim("a", limit=70), claim("b"), claim("c")]
    assert shares(100, claims) == {"a": 70, "b": 15, "c": 15}


def test_while_pinned_fills_others_stay_at_first():
    # Half of an equal part is 100 / 2 / 2 = 25: `first` counts 10 of b, and 25 of 60 of c.
    pinned = claim("val", math.inf, pinned=True)
    assert shares(100, [pinned, claim("b")]) == {"b": 10, "val": 90}
    assert shares(100, [pinned, claim("b", first=60)]) == {"b": 25, "val": 75}


def test_whole_pinned_leaves_the_rest():
    pinned = claim("val", 30, pinned=True, whole=True)
    assert shares(100, [pinned, claim("a"), claim("b")]) == {"val": 30, "a": 35, "b": 35}


def test_smallest_pinned_fills_first():
    claims = [claim("v", 80, pinned=True), claim("w", 30, pinned=True), claim("a", footprint=1)]
    assert shares(100, claims) == {"a": 10, "w": 30, "v": 60}


def test_need_is_listed_size_and_a_tenth_and_footprints():
    # 1.1 x 1,000 + (8 + 3) x 10
    assert need(500, False, 1000, 10, 8) == 1210


def test_need_is_unknown_before_listing_and_first_shard():
    assert need(500, False, math.inf, 10, 8) == math.inf


def test_whole_dataset_needs_two_more_footprints():
    assert need(500, True, 1000, 10, 8) == 520


def test_first_counts_half_of_the_share():
    assert first_bytes(GIB, 10 * GIB) == GIB
    assert first_bytes(6 * GIB, 10 * GIB) == 5 * GIB
