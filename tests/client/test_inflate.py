"""GZIP and ZLIB files as streams: whole, cut short, altered, endless, and no TFRecord files at all."""

import gzip
import random
import struct
import threading
import zlib
from concurrent.futures import CancelledError

import pytest

from cachecd_client import _core
from cachecd_client.errors import CorruptRecordError
from cachecd_client.inflate import compression_of, inflate
from tests.client.foreign import PACK, numbers, put
from tests.core.shards import frames

RECORDS = [b"first", b"", b"the third record"]
PLAIN = frames(RECORDS)
COMPRESSED = ["GZIP", "ZLIB"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


def inflated(path):
    """(offsets, bytes) of the file."""
    pieces = []
    offsets, size = inflate(str(path), compression_of(path), pieces.append, threading.Event())
    assert sum(map(len, pieces)) == size
    return offsets.tolist(), b"".join(pieces)


@pytest.mark.parametrize("compression", COMPRESSED)
def test_a_compressed_file_is_told_by_its_first_bytes_and_inflated(path, compression):
    put(path, RECORDS, compression)
    assert compression_of(path) == compression
    assert inflated(path) == ([0, 21, 37], PLAIN)


@pytest.mark.parametrize("level", range(10))
@pytest.mark.parametrize("window", [9, 15])
def test_zlib_of_every_level_and_window_is_told(path, level, window):
    stream = zlib.compressobj(level, zlib.DEFLATED, window)
    path.write_bytes(stream.compress(PLAIN) + stream.flush())
    assert inflated(path) == ([0, 21, 37], PLAIN)


@pytest.mark.parametrize("magic", [0x8B1F, 0x9C78, 0x0178])
def test_a_plain_file_whose_first_length_looks_like_a_magic_is_plain(path, magic):
    put(path, [b"x" * magic])
    assert compression_of(path) is None


@pytest.mark.parametrize("content", [b"", b"\x1f", b"x", b"neither one nor the other"])
def test_what_is_neither_is_taken_as_it_is(path, content):
    path.write_bytes(content)
    assert compression_of(path) is None


@pytest.mark.parametrize("compression", COMPRESSED)
def test_a_compressed_file_of_no_records_is_empty(path, compression):
    put(path, [], compression)
    assert inflated(path) == ([], b"")


def test_members_of_a_gzip_file_follow_each_other_with_zeros_after_them(path):
    cut = len(PLAIN) // 2  # within a frame
    parts = [gzip.compress(part) for part in (PLAIN[:cut], b"", PLAIN[cut:])]
    path.write_bytes(parts[0] + parts[1] + bytes(70_000) + parts[2] + bytes(512))
    assert inflated(path) == ([0, 21, 37], PLAIN)


def test_many_small_members_are_inflated(path):
    records = numbers(0, 3000)
    path.write_bytes(b"".join(gzip.compress(frames([record])) for record in records))
    offsets, content = inflated(path)
    assert content == frames(records)
    assert len(offsets) == 3000


@pytest.mark.parametrize("compression", COMPRESSED)
def test_records_beyond_the_buffers_are_inflated_piece_by_piece(path, compression):
    records = [random.Random(1).randbytes(3_000_000), bytes(5_000_000), b"end"]
    put(path, records, compression)
    largest = 0

    def write(piece):
        nonlocal largest
        largest = max(largest, len(piece))

    offsets, size = inflate(str(path), compression, write, threading.Event())
    assert offsets.tolist() == [0, 3_000_016, 8_000_032]
    assert size == 8_000_051
    assert largest <= 1 << 20


@pytest.mark.parametrize("compression", COMPRESSED)
def test_every_truncation_is_found_with_the_offset_of_the_first_record_that_is_not_whole(
    path, compression
):
    good = PACK[compression](PLAIN)
    seen = set()
    for size in range(2, len(good)):
        path.write_bytes(good[:size])
        with pytest.raises(
            CorruptRecordError, match="cut short: the file ends within it"
        ) as caught:
            inflated(path)
        assert caught.value.path == str(path)
        seen.add(caught.value.offset)
    assert seen <= {0, 21, 37, len(PLAIN)}
    assert {0, len(PLAIN)} <= seen  # in its checksum nothing but that is missing


def test_a_truncation_between_two_members_is_a_file_of_fewer_records(path):
    members = [gzip.compress(frames([record])) for record in RECORDS]
    path.write_bytes(members[0] + members[1])
    assert inflated(path)[0] == [0, 21]


@pytest.mark.parametrize("compression", COMPRESSED)
def test_every_flipped_bit_is_found_or_harmless(path, compression):
    good = PACK[compression](PLAIN)
    harmless = set()
    for at in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            path.write_bytes(bad)
            if compression_of(path) is None:
                assert at < 2
                continue
            try:
                content = inflated(path)[1]
            except CorruptRecordError:
                continue
            assert content == PLAIN
            harmless.add(at)
    # What no checksum covers: GZIP's text flag, time, level and operating system.
    assert harmless <= ({3, 4, 5, 6, 7, 8, 9} if compression == "GZIP" else set())


@pytest.mark.parametrize("compression", COMPRESSED)
def test_a_wrong_checksum_at_the_end_is_found(path, compression):
    put(path, RECORDS, compression)
    content = bytearray(path.read_bytes())
    content[-5 if compression == "GZIP" else -1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptRecordError, match="incorrect data check"):
        inflated(path)


def test_a_wrong_length_at_the_end_is_found(path):
    put(path, RECORDS, "GZIP")
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(CorruptRecordError, match="incorrect length check"):
        inflated(path)


@pytest.mark.parametrize(
    ("compression", "why"), [("GZIP", "incorrect header check"), ("ZLIB", "bytes follow its end")]
)
def test_garbage_after_the_stream_is_found(path, compression, why):
    put(path, RECORDS, compression)
    path.write_bytes(path.read_bytes() + b"garbage")
    with pytest.raises(CorruptRecordError, match=why) as caught:
        inflated(path)
    assert caught.value.offset == len(PLAIN)


def test_a_stream_that_holds_no_frames_ends_at_once(path):
    path.write_bytes(gzip.compress(b"a text, for instance " * 1_000_000, 1))
    written = []
    with pytest.raises(CorruptRecordError, match="length CRC") as caught:
        inflate(str(path), "GZIP", written.append, threading.Event())
    assert caught.value.offset == 0
    assert written == []


def test_a_length_that_no_compression_could_have_saved_is_not_believed(path):
    length = struct.pack("<Q", 1 << 40)
    header = length + struct.pack("<I", _core.masked_crc32c(length))
    path.write_bytes(gzip.compress(header + bytes(1 << 20)))
    with pytest.raises(CorruptRecordError, match="length 1099511627776 cannot be"):
        inflated(path)


def test_a_record_that_compresses_as_well_as_can_be_is_believed(path):
    put(path, [bytes(30_000_000)], "GZIP")
    assert path.stat().st_size < 30_000_000 / 1000
    assert inflated(path)[0] == [0]


def test_it_stops_when_told(path):
    put(path, [bytes(5_000_000)], "GZIP")
    stopped = threading.Event()
    written = []

    def write(piece):
        written.append(len(piece))
        stopped.set()

    with pytest.raises(CancelledError):
        inflate(str(path), "GZIP", write, stopped)
    assert len(written) == 1
