"""Which records a stream's shards hold, and where the stream is after each: against a slow model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.errors import UnitError
from cachecd.model import Cursor, Lane, Unit, etag_hash
from cachecd.sampler.draft import Draft
from cachecd.sampler.filling import Filling
from tests.sampler.fills import SKIPS, FakeDraft, Fakes, Shard, Source, Stream, slow, unit_of


@st.composite
def sources(draw: st.DrawFn) -> Source:
    records = draw(st.lists(st.integers(1, 60), min_size=1, max_size=8))
    fails_at = draw(st.none() | st.integers(0, len(records) - 1))
    hand = draw(st.sampled_from([0, 0, 0, 30 << 20, 70 << 20]))
    odd = draw(st.just(frozenset()) | st.frozensets(st.integers(0, len(records) - 1)))
    fails = fails_at if draw(st.integers(0, 3)) == 0 else None
    return Source(tuple(records), fails, hand, odd)


BLOCKS = st.lists(st.lists(sources(), min_size=1, max_size=9), min_size=1, max_size=3)
LANES = st.integers(1, 5)


@given(BLOCKS, LANES, st.integers(1, 7))
def test_shards_are_those_of_the_rule_however_units_are_paged(
    blocks: list[list[Source]], lanes: int, page: int
):
    stream = Stream(blocks, lanes, page=page)
    assert asyncio.run(stream.shards()) == slow(blocks, lanes)


@given(BLOCKS, LANES, st.data())
def test_stream_killed_at_any_shard_goes_on_with_the_same_shards(
    blocks: list[list[Source]], lanes: int, data: st.DataObject
):
    expected = slow(blocks, lanes)
    at = data.draw(st.integers(0, len(expected) - 1))
    cursor = expected[at - 1].after if at else Cursor()
    again = Stream(blocks, lanes, Cursor.unpack(cursor.pack()))
    assert asyncio.run(again.shards()) == expected[at:]


@given(BLOCKS, LANES, st.data())
def test_stream_that_lets_go_stays_where_it_is(
    blocks: list[list[Source]], lanes: int, data: st.DataObject
):
    async def run() -> list[Shard]:
        stream = Stream(blocks, lanes)
        found: list[Shard] = []
        while not found or found[-1].end != "pass":
            if data.draw(st.booleans()):
                await stream.filling.release_lanes()
            found.append(await stream.shard())
        return found

    assert asyncio.run(run()) == slow(blocks, lanes)


@given(BLOCKS, LANES, st.data())
def test_next_pass_up_to_until_has_what_the_shards_behind_have_not(
    blocks: list[list[Source]], lanes: int, data: st.DataObject
):
    """`until` is the cursor before the oldest live shard: the next pass has each record below it once."""
    first = slow(blocks, lanes)
    at = data.draw(st.integers(0, len(first) - 1))
    before = first[at - 1].after if at else Cursor()
    until = replace(before, pass_=1)
    stream = Stream(blocks, lanes, Cursor(1), until)
    again = asyncio.run(stream.shards())
    records = [record for shard in again for record in shard.records]
    assert sorted(records) == sorted(r for shard in first[:at] for r in shard.records)
    assert [replace(s, after=replace(s.after, pass_=0)) for s in again] == slow(
        blocks, lanes, before
    )


@given(BLOCKS, LANES, st.data())
def test_stream_goes_on_when_until_moves(
    blocks: list[list[Source]], lanes: int, data: st.DataObject
):
    """In steps of any size, each record is given once, and only those below `until`."""
    first = slow(blocks, lanes)
    steps = sorted(data.draw(st.sets(st.integers(0, len(first) - 1), min_size=1, max_size=4)))

    async def run() -> None:
        befores = [first[at - 1].after if at else Cursor() for at in steps]
        untils = [replace(before, pass_=1) for before in befores]
        stream = Stream(blocks, lanes, Cursor(1), untils[0])
        given_: list[tuple[int, int]] = []
        for at, until in zip(steps, untils, strict=True):
            stream.filling.move_until(until)
            for shard in await stream.shards():
                given_ += shard.records
            assert sorted(given_) == sorted(r for shard in first[:at] for r in shard.records)
        stream.filling.move_until(None)
        for shard in await stream.shards():
            given_ += shard.records
        assert sorted(given_) == sorted(r for shard in first for r in shard.records)
        read = stream.supply.read
        assert len(read) == len(set(read)), "no record is read twice"
        assert set(read) >= set(given_)

    asyncio.run(run())


# --- one by one


def whole(*counts: int) -> list[Source]:
    """Units of so many records of 10 bytes."""
    return [Source((10,) * count) for count in counts]


def test_record_of_a_run_that_fails_counts_the_records_before():
    """A run adds several records in one step: the unit is skipped from the first on that was not added."""

    class Runs(Fakes):
        async def pour(self, handle: int, draft: Draft) -> Any:
            self.open.add(handle)
            yield 0, 0
            shard = cast(FakeDraft, draft)
            shard.add(1, 0, 0)
            shard.add(1, 0, 1)
            raise UnitError("bad")

    source = Source((1, 1, 1))
    stream = Stream([[source]], 1, supply=Runs([source]))
    [shard] = asyncio.run(stream.shards())
    assert (shard.records, shard.skipped) == ([(0, 0), (0, 1)], [(0, 2)])


BEGUN = Cursor(1, 0, 1, (Lane(0, 0, 0, etag_hash("old"), 40, 1, 10),))


def begun(listed: Unit | None, until: Cursor | None, found: tuple[str, int] | None) -> Any:
    """A stream that has begun unit 0, of ETag "old", as it goes on."""
    source = whole(4)[0]
    supply = Fakes([source])
    supply.found = found
    filling_ = Filling(supply, 2, BEGUN, [listed], until, SKIPS)
    filling_.feed(0, 1, [], "end")
    draft = FakeDraft()
    end = asyncio.run(filling_.fill(cast(Draft, draft)))
    assert filling_.shard is not None
    return draft.shard, [(s.record, s.reason.split(":")[0]) for s in filling_.shard.skipped], end


AT_2 = replace(BEGUN, lanes=(replace(BEGUN.lanes[0], record=2),))


@pytest.mark.parametrize(
    ("listed", "until", "found", "expected"),
    [
        (Unit(0, "0", 40, "old"), None, None, ([(0, 1), (0, 2), (0, 3)], [], "pass")),
        (Unit(0, "0", 40, "new"), None, ("old", 40), ([], [(1, "rewritten")], "pass")),
        (Unit(0, "0", 41, "old"), None, ("old", 40), ([], [(1, "rewritten")], "pass")),
        (None, None, ("old", 40), ([], [(1, "gone")], "pass")),
        # At `until` it is read to the record named there, if the store still has that version.
        (Unit(0, "0", 40, "new"), AT_2, ("old", 40), ([(0, 1)], [], "until")),
        (Unit(0, "0", 40, "new"), AT_2, ("new", 40), ([], [(1, "rewritten")], "pass")),
        (Unit(0, "0", 40, "new"), AT_2, None, ([], [(1, "not found")], "pass")),
        (Unit(0, "0", 40, "new"), BEGUN, None, ([], [], "until")),
    ],
)
def test_unit_that_was_rewritten_is_skipped_unless_until_names_it(
    listed: Unit | None, until: Cursor | None, found: Any, expected: Any
):
    assert begun(listed, until, found) == expected


def test_condemned_units_are_skipped_without_a_try():
    """One that is in hand, and one that is not opened yet."""
    sources_ = whole(4, 2, 2)
    supply = Fakes(sources_)
    cursor = Cursor(0, 0, 1, (Lane(0, 0, 0, etag_hash(""), 40, 1, 10),))
    condemned = {n: UnitError("workers died", passing=n == 0) for n in (0, 2)}
    filling_ = Filling(supply, 2, cursor, [unit_of(0, sources_[0])], None, SKIPS, condemned)
    filling_.feed(0, 1, [unit_of(n, sources_[n]) for n in (1, 2)], "end")
    draft = FakeDraft()
    assert asyncio.run(filling_.fill(cast(Draft, draft))) == "pass"
    assert filling_.shard is not None
    skipped = [(s.unit, s.record, s.reason, s.passing) for s in filling_.shard.skipped]
    assert sorted(skipped) == [(0, 1, "workers died", True), (2, 0, "workers died", False)]
    assert {record[0] for record in draft.shard} == {record[0] for record in supply.read} == {1}
