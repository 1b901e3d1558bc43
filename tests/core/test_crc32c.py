"""CRC-32C against RFC 3720's vectors, a bit-by-bit reference, and itself in pieces."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd_client import _core
from tests.core.shards import slow_crc32c

# RFC 3720, B.4, and the polynomial's usual check value.
VECTORS = [
    (b"", 0x00000000),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
    (
        bytes.fromhex(
            "01c00000000000000000000000000000 14000000000004000000001400000018"
            "28000000000000000200000000000000"
        ),
        0xD9963A56,
    ),
]

# Those that this processor lacks fall back to the next.
WAYS = ("folding", "streams", "tables")

# Where the streams of the interleaved implementation begin and end, and the bytes around.
EDGES = [n + d for n in (8, 256, 768, 1536, 4096, 12288) for d in (-1, 0, 1)]


@pytest.mark.parametrize(("data", "crc"), VECTORS)
def test_published_vectors(data, crc):
    assert _core.crc32c(data) == crc
    assert {_core._crc32c_by(by, data) for by in WAYS} == {crc}


@pytest.mark.parametrize("size", EDGES)
def test_lengths_around_the_edges_of_streams_agree_with_the_bitwise_reference(size):
    data = random.Random(size).randbytes(size)
    crc = slow_crc32c(data)
    assert _core.crc32c(data) == crc
    assert {_core._crc32c_by(by, data) for by in WAYS} == {crc}


@given(st.binary(max_size=2000), st.integers(0, 2000))
def test_a_crc_continues_where_another_ended(data, cut):
    assert _core.crc32c(data[cut:], _core.crc32c(data[:cut])) == _core.crc32c(data)


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 256, 257, 4163, 30001])
def test_a_copy_made_on_the_way_is_whole_wherever_it_begins_and_ends(by, size):
    data = random.Random(size).randbytes(size)
    for start, coming in itertools.product((0, 1, 63), (0, 1, 300, size)):
        assert _core._copy_with_crc32c_by(by, data, start, coming) == (data, _core.crc32c(data))


def test_the_mask_is_tfrecords():
    # ((crc >> 15) | (crc << 17)) + 0xa282ead8 of 0xE3069283.
    assert _core.masked_crc32c(b"123456789") == 0xC78AB0E5
