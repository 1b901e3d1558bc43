"""With any files in the directory, a start keeps leased shards, and a second start finds the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecd.disk.durable import State, read_state
from cachecd.disk.inventory import remove_leftovers, take_inventory
from cachecd.disk.layout import GenerationLayout
from cachecd.disk.publish import publish
from cachecd.disk.snapshot import write_snapshot
from tests.disk.shards import SHAPE, directory, make, tree, write

NUMBERS, VERSIONS = (0, 1, 2, 3, 4, 6), (0, 1, 2)
KINDS = ("shard", "sidecar", "bad", "old", "temporary", "temporary_sidecar")
EMPTY = 3  # this number has no records

# (number, version, kind): "cut" files are truncated, "damaged" ones are no sidecar.
FILES = st.tuples(
    st.sampled_from(NUMBERS),
    st.sampled_from(VERSIONS),
    st.sampled_from(KINDS),
    st.sampled_from(["whole"] * 6 + ["cut", "damaged"]),
)


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> GenerationLayout:
    layout = directory(tmp_path_factory.mktemp("originals"))
    for version in VERSIONS:
        make(layout, *(number for number in NUMBERS if number != EMPTY), version=version)
        write(layout, EMPTY, version, records=0)
        publish(layout, EMPTY, version)
    return layout


def path_of(layout: GenerationLayout, number: int, version: int, kind: str) -> Path:
    return layout.old(number) if kind == "old" else getattr(layout, kind)(number, version)


def put(originals: GenerationLayout, layout: GenerationLayout, files: list) -> None:
    for number, version, kind, state in files:
        path = path_of(layout, number, version, kind)
        original = originals.shard if kind in ("shard", "temporary") else originals.sidecar
        source = original(number, version)
        if path.exists() or not source.exists():
            continue
        content = source.read_bytes()
        path.write_bytes({"whole": content, "cut": content[:-1], "damaged": b"damaged"}[state])


def directories() -> Iterator[int]:
    n = 0
    while True:
        yield n
        n += 1


COUNT = directories()


@settings(max_examples=60)
@given(
    st.lists(FILES, max_size=30),
    st.sets(st.tuples(st.sampled_from(NUMBERS), st.sampled_from(VERSIONS)), max_size=4),
    st.booleans(),
)
def test_start_keeps_leased_shards_and_is_stable(
    originals, tmp_path_factory, files, leased, trusts
):
    layout = directory(tmp_path_factory.getbasetemp() / f"any-{next(COUNT)}")
    put(originals, layout, files)
    if trusts:
        shards = take_inventory(layout, SHAPE, State(), leased).shards
        write_snapshot(layout.snapshot, [shard[:2] for shard in shards])
    before = tree(layout)
    found = take_inventory(layout, SHAPE, State(), leased)
    assert tree(layout) == before
    remove_leftovers(layout, found, State())
    again = take_inventory(layout, SHAPE, read_state(layout.state), leased)
    assert (again.shards, again.dropped, again.stray) == (found.shards, (), ())
    assert [cursor for _, cursor in again.heads] == [cursor for _, cursor in found.heads]
    for (earlier, _), (later, _) in zip(found.heads, again.heads, strict=True):
        assert later <= earlier, "a mark without a file is gone"
    left = set(tree(layout))
    for number, version in leased:  # all leased shards stay
        for kind in ("shard", "sidecar"):
            path = path_of(layout, number, version, kind)
            assert path.name not in before or path.name in left
    numbers = [shard.number for shard in found.shards]
    assert numbers == sorted(set(numbers))
    for shard in found.shards:
        stream, j = SHAPE.split(shard.number)
        assert found.heads[stream][0] > j
        known = {shard.facts.version, *(version for version, _ in shard.elders)}
        assert {version for number, version in leased if number == shard.number} & {
            version
            for version in VERSIONS
            for kind in ("shard", "sidecar")
            if os.path.exists(path_of(layout, shard.number, version, kind))
        } <= known
        if shard.status == "live":
            name = (shard.number, shard.facts.version)
            assert layout.sidecar(*name).read_bytes() == originals.sidecar(*name).read_bytes()
            if shard.number != EMPTY:
                assert layout.shard(*name).stat().st_size == originals.shard(*name).stat().st_size
        if shard.status != "old":
            assert not layout.old(shard.number).exists()
