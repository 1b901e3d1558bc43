"""The values of a stream: cursors survive packing, and each unit belongs to one stream."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.model import (
    LONGEST_CURSOR,
    MOST_LANES,
    Cursor,
    Lane,
    Shape,
    etag_hash,
)

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
LANES = st.builds(Lane, U32, U32, U64, U64, U64, U32, U64)
CURSORS = st.builds(
    Cursor,
    U32,
    U32,
    U32,
    st.lists(LANES, max_size=MOST_LANES, unique_by=lambda lane: (lane.block, lane.place)).map(
        lambda lanes: tuple(sorted(lanes))
    ),
)
SHAPES = st.builds(
    Shape, st.integers(1, 9), st.integers(1, 40), st.just(4), st.just(1 << 20), st.just(0)
)
ENDS = st.lists(st.integers(1, 200), max_size=6).map(lambda sizes: list(accumulate(sizes)))


@given(CURSORS)
def test_packed_cursor_is_unpacked_unchanged(cursor: Cursor):
    assert Cursor.unpack(cursor.pack()) == cursor


@given(CURSORS)
def test_packed_cursor_is_at_most_1_kib(cursor: Cursor):
    assert len(cursor.pack()) <= LONGEST_CURSOR


@given(CURSORS, st.integers(0, LONGEST_CURSOR))
def test_cut_cursor_is_refused_or_has_fewer_lanes(cursor: Cursor, cut: int):
    text = cursor.pack()
    try:
        unpacked = Cursor.unpack(text[:cut])
    except ValueError:
        return
    assert unpacked == replace(cursor, lanes=cursor.lanes[: len(unpacked.lanes)])


@pytest.mark.parametrize("text", ["", "A", "AAAA", "not base64!", "é", "A" * 20])
def test_text_that_is_no_cursor_is_refused(text: str):
    with pytest.raises(ValueError, match=r".+"):
        Cursor.unpack(text)


def test_lanes_out_of_order_are_refused():
    lanes = Lane(0, 2, 5, 0, 0), Lane(0, 1, 4, 0, 0)
    with pytest.raises(ValueError, match="order"):
        Cursor.unpack(Cursor(0, 0, 3, lanes).pack())


def test_field_out_of_range_is_refused():
    with pytest.raises(ValueError, match="out of range"):
        Cursor(-1).pack()


def test_packed_form_is_frozen():
    cursor = Cursor(1, 2, 3, (Lane(1, 7, 300, etag_hash("e"), 4096, 5, 1024),))
    assert cursor.pack() == (
        "AQAAAAIAAAADAAAAAQAAAAcAAAAsAQAAAAAAABDYpSSwLx1PABAAAAAAAAAFAAAAAAQAAAAAAAA="
    )


def test_etag_hash_is_frozen():
    assert etag_hash("") == 13020603013274838756
    assert etag_hash('"a"') == 12111382473771085846
    assert etag_hash("\udcff") == 11729288294358392782


def test_next_pass_begins_without_lanes():
    assert Cursor(3, 2, 1, (Lane(0, 0, 0, 0, 0),)).next_pass() == Cursor(4)


@given(SHAPES, ENDS)
def test_each_place_belongs_to_one_stream_in_ascending_order(shape: Shape, ends: list[int]):
    """Against counting them one by one."""
    for stream in range(shape.streams):
        found = []
        for block in range(len(ends)):
            begin = ends[block - 1] if block else 0
            expected = [
                g for g in range(begin, ends[block]) if g // shape.stripe % shape.streams == stream
            ]
            count = shape.units_in(stream, block, ends)
            assert [shape.g_of(stream, block, place, ends) for place in range(count)] == expected
            found += expected
        assert shape.units_of(stream, ends) == len(found)
    assert sum(shape.units_of(stream, ends) for stream in range(shape.streams)) == (
        ends[-1] if ends else 0
    )


@given(SHAPES, ENDS.filter(bool), st.integers(1, 300))
def test_new_block_changes_no_earlier_place(shape: Shape, ends: list[int], more: int):
    longer = [*ends, ends[-1] + more]
    for stream in range(shape.streams):
        for block in range(len(ends)):
            count = shape.units_in(stream, block, ends)
            assert count == shape.units_in(stream, block, longer)
            for place in range(count):
                assert shape.g_of(stream, block, place, ends) == shape.g_of(
                    stream, block, place, longer
                )


def test_place_behind_the_blocks_last_is_an_error():
    shape = Shape(2, 2, 4, 1 << 20, 0)
    with pytest.raises(IndexError, match="no place 2 in block 0"):
        shape.g_of(0, 0, 2, [4])


@given(SHAPES, st.integers(0, 10**9))
def test_number_splits_into_stream_and_count(shape: Shape, number: int):
    stream, j = shape.split(number)
    assert 0 <= stream <= shape.streams
    assert shape.number(stream, j) == number
