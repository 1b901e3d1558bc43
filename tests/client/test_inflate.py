"""GZIP, ZLIB and Zstandard files as streams: whole, cut short, altered, endless, and no TFRecord files."""

import gzip
import io
import sys

import pytest

from cachecd_client.errors import CallerError, CorruptRecordError
from cachecd_client.files.inflate import (
    InflateError,
    Inflater,
    compression_of,
    compression_of_head,
    inflated_head,
)
from cachecd_client.index import inflate
from tests import zstandard
from tests.client.foreign import PACK, put
from tests.core.shards import frames
from tests.zstandard import SKIPPABLE, zstd

RECORDS = [b"first", b"", b"the third record"]
PLAIN = frames(RECORDS)
COMPRESSED = ["GZIP", "ZLIB", "ZSTD"]
# The header of a frame of a single segment, whose content has 256 MiB, and more of the frame.
LONG = b"\x28\xb5\x2f\xfd\xa0" + (1 << 28).to_bytes(4, "little") + bytes(20)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


def inflated(path):
    content = io.BytesIO()
    inflate(str(path), compression_of(path), content)
    return content.getvalue()


def fed(stream, compression="ZSTD", step=1 << 20):
    """The content, or the error, of a stream that arrives in pieces."""
    inflater = Inflater(compression)
    content = b""
    try:
        for at in range(0, len(stream), step):
            content += b"".join(inflater.feed(stream[at : at + step]))
        inflater.finish()
    except InflateError as error:
        return str(error)
    return content


@pytest.mark.parametrize("compression", COMPRESSED)
def test_a_compressed_file_is_told_by_its_first_bytes_and_inflated(path, compression):
    put(path, RECORDS, compression)
    assert compression_of(path) == compression
    assert inflated(path) == PLAIN


def test_members_of_a_gzip_file_follow_each_other_with_zeros_after_them(path):
    cut = len(PLAIN) // 2  # within a frame
    parts = [gzip.compress(part) for part in (PLAIN[:cut], b"", PLAIN[cut:])]
    path.write_bytes(parts[0] + parts[1] + bytes(70_000) + parts[2] + bytes(512))
    assert inflated(path) == PLAIN


def test_zstandard_frames_follow_each_other_with_skippable_frames_between(path):
    path.write_bytes(zstandard.frames(PLAIN))
    assert compression_of(path) == "ZSTD"
    assert inflated(path) == PLAIN
    assert fed(path.read_bytes(), step=1) == PLAIN


@pytest.mark.parametrize("compression", COMPRESSED)
def test_every_truncation_is_found_with_its_byte(path, compression):
    good = PACK[compression](PLAIN)
    for size in range(4 if compression == "ZSTD" else 2, len(good)):
        path.write_bytes(good[:size])
        with pytest.raises(CorruptRecordError, match="incomplete: the file ends after") as caught:
            inflated(path)
        assert (caught.value.path, caught.value.offset) == (str(path), size)


@pytest.mark.parametrize("step", [1, 1 << 20])
def test_zstandard_stream_that_ends_within_a_frame_is_incomplete(step):
    first = zstandard.compress(PLAIN)
    stream = first + SKIPPABLE + zstd.compress(PLAIN)
    whole = {len(first): PLAIN, len(first + SKIPPABLE): PLAIN, len(stream): 2 * PLAIN}
    for size in range(len(stream) + 1):
        expected = f"the ZSTD stream is incomplete: the file ends after {size} bytes"
        assert fed(stream[:size], step=step) == whole.get(size, expected)


def test_altered_zstandard_frame_never_gives_other_content():
    stream = zstandard.compress(PLAIN)
    results = []
    for bit in range(8 * len(stream)):
        altered = bytearray(stream)
        altered[bit // 8] ^= 1 << bit % 8
        results.append(fed(bytes(altered)))
    assert {result for result in results if isinstance(result, bytes)} <= {PLAIN}
    checksum = results[-32:]
    assert set(checksum) == {"ZSTD stream: Restored data doesn't match checksum"}


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (zstandard.compress(PLAIN) + b"garbage", "ZSTD stream: Unknown frame descriptor"),
        (zstandard.compress(PLAIN) + bytes(512), "ZSTD stream: Unknown frame descriptor"),
        (zstandard.compress(PLAIN) + b"g", "ZSTD stream: Unknown frame descriptor"),
        (zstandard.wide(28), "a window of 268435456 bytes, expected at most 134217728"),
        (zstandard.wide(41), "a window of 2199023255552 bytes, expected at most 134217728"),
        (LONG, "a window of 268435456 bytes, expected at most 134217728"),
        (b"\x28\xb5\x2f\xfd\x28" + LONG[5:], "ZSTD stream: Unsupported frame parameter"),
    ],
    ids=[
        "garbage",
        "zeros",
        "a byte",
        "256 MiB",
        "2 TiB",
        "one segment of 256 MiB",
        "a reserved bit",
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_zstandard_stream_is_refused_however_it_arrives(stream, why, step):
    assert why in fed(stream, step=step)


def test_zstandard_window_of_128_mib_is_accepted():
    assert fed(zstandard.wide(27)) == b"hello"


def test_zstandard_frame_with_a_dictionary_is_refused_by_its_number():
    samples = [b"a text with the number %d, and more" % n for n in range(1000)]
    dictionary = zstd.train_dict(samples, 1000)
    stream = zstd.compress(samples[7], zstd_dict=dictionary)
    assert f"a frame needs the dictionary {dictionary.dict_id}: compress it without" in fed(stream)


@pytest.mark.parametrize("compression", COMPRESSED)
def test_bomb_is_inflated_a_mebibyte_at_a_time(compression):
    bomb = PACK[compression](bytes(40 << 20))
    pieces = [len(piece) for piece in Inflater(compression).feed(bomb)]
    assert max(pieces) == 1 << 20
    assert sum(pieces) == 40 << 20
    assert inflated_head(bomb, 3 << 20) == bytes(3 << 20)


def test_head_of_an_object_is_inflated_as_far_as_it_goes():
    text = b"".join(b"line %d\n" % n for n in range(100_000))
    assert inflated_head(text[:1000], 99) == text[:1000]
    for compression in COMPRESSED:
        head = PACK[compression](text)[:100_000]
        content = inflated_head(head, 1 << 20)
        assert len(content) > 100_000
        assert text.startswith(content)


@pytest.mark.parametrize(
    "head", [b"", b"\x28", b"\x28\xb5\x2f", b"\x50\x2a\x4d", b"\x60\x2a\x4d\x18"]
)
def test_other_bytes_are_not_taken_for_zstandard(head):
    assert compression_of_head(head) is None


def test_missing_zstandard_library_is_named_with_its_command(path, monkeypatch):
    put(path, RECORDS, "ZSTD")
    for module in ("backports.zstd", "compression.zstd"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(CallerError, match=r"with Zstandard: pip install backports\.zstd"):
        inflated(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (PACK["GZIP"](PLAIN) + b"garbage", "incorrect header check"),
        (PACK["ZLIB"](PLAIN) + b"garbage", "bytes follow the end of"),
        (gzip.compress(b"a text, for instance"), "content is not a TFRecord file"),
    ],
    ids=["GZIP and more", "ZLIB and more", "a text"],  # GZIP's bytes name the time
)
def test_what_is_no_compressed_tfrecord_file_is_found(path, content, why):
    path.write_bytes(content)
    with pytest.raises(CorruptRecordError, match=why):
        inflated(path)
