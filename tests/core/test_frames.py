"""Finding the frames of a stream that comes in pieces: wherever they are cut, altered, hostile."""

import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd_client import _core
from cachecd_client.errors import CorruptRecordError
from tests.core.shards import slow_frame, slow_mask

STREAM = b"".join(map(slow_frame, [b"first", b"", b"the third record"]))
STARTS = [0, 21, 37, len(STREAM)]


def scan(pieces, at_most=1 << 20):
    scanner = _core.FrameScanner("name", at_most)
    for piece in pieces:
        scanner.feed(piece)
    return scanner


@given(cuts=st.lists(st.integers(0, len(STREAM))))
def test_the_frames_are_the_same_wherever_the_stream_is_cut(cuts):
    places = [0, *sorted(cuts), len(STREAM)]
    scanner = scan(STREAM[a:b] for a, b in itertools.pairwise(places))
    offsets = scanner.finish()
    assert offsets.dtype == np.uint64
    assert offsets.tolist() == STARTS[:-1]
    assert scanner.offset == len(STREAM)


def test_an_empty_stream_has_no_frames():
    assert scan([]).finish().shape == (0,)


def test_every_early_end_is_found_at_the_cut_frames_offset():
    for size in range(len(STREAM)):
        scanner = scan([STREAM[:size]])
        start = max(s for s in STARTS if s <= size)
        assert scanner.offset == start
        if size == start:
            assert scanner.finish().tolist() == STARTS[: STARTS.index(start)]
            continue
        with pytest.raises(CorruptRecordError, match="cut short") as caught:
            scanner.finish()
        assert (caught.value.path, caught.value.offset) == ("name", start)


def test_every_altered_byte_of_a_length_is_found_as_soon_as_it_is_there():
    for start in STARTS[:-1]:
        for at in range(start, start + 12):
            altered = bytearray(STREAM[: start + 12])
            altered[at] ^= 1
            with pytest.raises(CorruptRecordError, match="length CRC") as caught:
                scan([altered])
            assert caught.value.offset == start


@pytest.mark.parametrize("length", [85, 2**31, 2**63, 2**64 - 16, 2**64 - 1])
def test_a_length_beyond_what_the_stream_can_have_is_not_believed(length):
    header = struct.pack("<Q", length)
    with pytest.raises(CorruptRecordError, match="at most 100 more") as caught:
        scan([slow_frame(b"x"), header + slow_mask(header)], at_most=17 + 100)
    assert caught.value.offset == 17


def test_a_frame_that_fills_the_stream_is_believed():
    frame = slow_frame(b"x" * 84)
    assert scan([frame], at_most=100).finish().tolist() == [0]


def test_payloads_are_not_looked_at():
    altered = bytearray(STREAM)
    altered[13] ^= 1
    assert scan([altered]).finish().tolist() == STARTS[:-1]
