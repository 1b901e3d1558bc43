"""Which units a node has, and which are held out: by hashes of their keys, and by nothing else."""

from __future__ import annotations

import dataclasses
from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.config import DatasetConfig
from cachecd.config.identity import identity_of, split_of
from cachecd.model import ObjectInfo
from cachecd.policy.values import split_change
from cachecd.units.selection import selection_of

UNITS = [
    ObjectInfo(f"patient-{n % 97}/{n:05d}\nא/../{n}", n, begin=(n % 3) * 1000) for n in range(9000)
]


def dataset(**changes: Any) -> DatasetConfig:
    source = {"url": "s3://b/", "format": "files"}
    return DatasetConfig.model_validate({"source": source} | changes)


def taken(of: DatasetConfig, units: list[ObjectInfo] = UNITS) -> set[ObjectInfo]:
    takes = selection_of(of)
    assert takes is not None
    return set(filter(takes, units))


def test_of_a_partition_each_unit_is_one_nodes_and_all_have_about_as_many():
    parts = [taken(dataset(partition={"index": n, "count": 4})) for n in range(4)]
    assert set().union(*parts) == set(UNITS)
    assert not any(a & b for a, b in combinations(parts, 2))
    assert all(2000 < len(part) < 2500 for part in parts)


def test_both_sides_of_a_split_are_all_and_have_none_in_common():
    split = dataset(split={"eval": 0.1})
    rest, held_out = taken(split), taken(split.other_side())
    assert rest | held_out == set(UNITS)
    assert not rest & held_out
    assert 800 < len(held_out) < 1000
    assert not {u.key for u in rest} & {u.key for u in held_out}


WINDOWS = [ObjectInfo("tokens.npy", 4 << 20, begin=128 + (n << 22)) for n in range(2000)]


def test_by_unit_one_object_is_divided_and_by_key_it_is_not():
    by_unit = dataset(split={"eval": 0.1, "by": "unit"})
    rest, held_out = taken(by_unit, WINDOWS), taken(by_unit.other_side(), WINDOWS)
    assert 150 < len(held_out) < 250
    assert len(rest) + len(held_out) == len(WINDOWS)
    by_key = dataset(split={"eval": 0.1})
    assert len(taken(by_key, WINDOWS)) in (0, len(WINDOWS))


units = st.builds(
    ObjectInfo, st.text(max_size=20), st.integers(0, 99), begin=st.integers(0, 1 << 50)
)


@given(
    st.lists(units, unique_by=lambda u: (u.key, u.begin), max_size=50),
    st.sampled_from(["key", "unit"]),
    st.tuples(st.floats(0.001, 0.999), st.floats(0.001, 0.999)).map(sorted),
    st.randoms(use_true_random=False),
)
def test_the_sides_are_all_and_disjoint_in_whatever_order_and_with_whatever_others_units_are_listed(
    units: list[ObjectInfo], by: str, shares: list[float], random: Random
):
    less, more = (dataset(split={"eval": share, "by": by}) for share in shares)
    held_out = taken(less.other_side(), units)
    assert taken(less, units) | held_out == set(units)
    assert not taken(less, units) & held_out
    assert held_out <= taken(more.other_side(), units)
    # Listed again: in another order, some gone, some rewritten.
    again = random.sample(units, len(units) // 2)
    again = [dataclasses.replace(u, size=u.size + 1, etag="new") for u in again]
    names = {(u.key, u.begin) for u in held_out}
    assert {(u.key, u.begin) for u in taken(less.other_side(), again)} == {
        (u.key, u.begin) for u in again if (u.key, u.begin) in names
    }


@pytest.mark.parametrize("group", ["^(patient-[0-9]+)/", "(?P<group>patient-[0-9]+)(/)"])
def test_whole_groups_are_on_one_side(group: str):
    split = dataset(split={"eval": 0.3, "group": group})
    sides = [{u.key.split("/")[0] for u in taken(s)} for s in (split, split.other_side())]
    assert not sides[0] & sides[1]
    assert 15 < len(sides[1]) < 45


def test_what_is_held_out_does_not_depend_on_the_partition():
    split = {"eval": 0.3}
    held_out = taken(dataset(split=split).other_side())
    parts = [dataset(split=split, partition={"index": n, "count": 3}) for n in range(3)]
    assert set().union(*(taken(part.other_side()) for part in parts)) == held_out
    assert not set().union(*map(taken, parts)) & held_out


def test_the_choice_is_the_same_for_ever():
    """Whoever sees this fail has changed which data are held out of every user's training."""
    units = [ObjectInfo(f"key-{n}", 1) for n in range(40)]
    held_out = taken(dataset(split={"eval": 0.2}).other_side(), units)
    part = taken(dataset(partition={"index": 1, "count": 5}), units)
    assert sorted(int(u.key[4:]) for u in held_out) == [0, 3, 8, 14, 19, 23, 28, 36, 39]
    by_unit = dataset(split={"eval": 0.2, "by": "unit"}).other_side()
    runs = taken(by_unit, [ObjectInfo("tokens.npy", 1, begin=n * 4096) for n in range(40)])
    assert sorted(u.begin // 4096 for u in runs) == [2, 3, 7, 9, 13, 16, 20, 23, 26, 29, 34]
    assert sorted(int(u.key[4:]) for u in part) == [10, 16, 20, 21, 22, 38]


def test_a_split_under_another_url_or_of_other_windows_is_another_split():
    """Units are held out by their names, which begin behind the URL and name the window."""

    def of(**changes):
        source = {"url": "s3://b/", "format": "files", **changes}
        given = dataset(source=source, split={"eval": 0.1, "by": "unit"})
        return split_of(identity_of(given))

    def windows(length):
        return of(url="s3://b/tokens.npy", format="npy", array={"window": length})

    assert of() != of(url="s3://b/data/")
    assert split_change(of(), of(url="s3://b/data/")) == (
        'url changed from "s3://b/" to "s3://b/data/"'
    )
    assert split_change(of(), windows(128)).startswith(
        'array changed from none to {"window": 128},'
    )
    assert windows(128) != windows(256)
    assert of() == of(endpoint="http://elsewhere:9000")
    joined = [of(join={"a": first, "b": "b/*"}) for first in ("a/*", "c/*")]
    assert joined[0] != joined[1]
    assert of(join={"a": "a/*", "b": "d/*"}) == joined[0]
