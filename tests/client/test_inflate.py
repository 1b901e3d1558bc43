"""GZIP and ZLIB files as streams: whole, cut short, altered, endless, and no TFRecord files at all."""

import gzip
import io

import pytest

from cachecd_client.errors import CorruptRecordError
from cachecd_client.files.inflate import compression_of
from cachecd_client.index import inflate
from tests.client.foreign import PACK, put
from tests.core.shards import frames

RECORDS = [b"first", b"", b"the third record"]
PLAIN = frames(RECORDS)
COMPRESSED = ["GZIP", "ZLIB"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


def inflated(path):
    content = io.BytesIO()
    inflate(str(path), compression_of(path), content)
    return content.getvalue()


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


@pytest.mark.parametrize("compression", COMPRESSED)
def test_every_truncation_is_found_with_its_byte(path, compression):
    good = PACK[compression](PLAIN)
    for size in range(2, len(good)):
        path.write_bytes(good[:size])
        with pytest.raises(CorruptRecordError, match="incomplete: the file ends after") as caught:
            inflated(path)
        assert (caught.value.path, caught.value.offset) == (str(path), size)


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
