"""Walking a TFRecord file and reading one record: whole, altered, cut short, hostile."""

import gzip
import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd_client import _core
from cachecd_client.errors import CorruptRecordError
from tests.core.shards import flip, frames, slow_frame, slow_mask

PAYLOADS = [b"first", b"", b"the third record"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(map(slow_frame, PAYLOADS)))
    return path


@given(sizes=st.lists(st.integers(0, 700_000), max_size=6), seed=st.integers(0, 9))
def test_records_across_the_read_buffer_are_found(tmp_path_factory, sizes, seed):
    source = random.Random(seed)
    payloads = [source.randbytes(size) for size in sizes]
    path = tmp_path_factory.getbasetemp() / "sizes.tfrecord"
    path.write_bytes(frames(payloads))
    expected = np.cumsum([0] + [size + 16 for size in sizes])[:-1].tolist()
    assert _core.scan(str(path)).tolist() == expected
    assert _core.scan(str(path), verify=True).tolist() == expected


def test_every_altered_byte_is_found_at_its_records_offset(file):
    good = file.read_bytes()
    starts = [0, 21, 37, len(good)]
    for at in range(len(good)):
        file.write_bytes(good)
        flip(file, at)
        start = max(s for s in starts if s <= at)
        with pytest.raises(CorruptRecordError) as caught:
            _core.scan(str(file), verify=True)
        assert (caught.value.path, caught.value.offset) == (str(file), start)
        assert "CRC is 0x" in caught.value.why
        with pytest.raises(CorruptRecordError, match="CRC is 0x"):
            _core.read_record(str(file), start)


def test_every_truncation_is_found_at_the_cut_records_offset(file):
    good = file.read_bytes()
    starts = [0, 21, 37, len(good)]
    for size in range(len(good)):
        file.write_bytes(good[:size])
        if size in starts:  # indeed a whole file of fewer records
            assert _core.scan(str(file)).tolist() == starts[: starts.index(size)]
            continue
        start = max(s for s in starts if s <= size)
        for verify in (False, True):
            with pytest.raises(CorruptRecordError, match="cut short") as caught:
                _core.scan(str(file), verify=verify)
            assert caught.value.offset == start
        with pytest.raises(CorruptRecordError, match="cut short"):
            _core.read_record(str(file), start)


@pytest.mark.parametrize(
    "length", [30, 2**31, 2**32, 2**40, 2**63, 2**64 - 17, 2**64 - 16, 2**64 - 1]
)
def test_a_length_beyond_the_file_is_not_believed_though_its_crc_is_right(tmp_path, length):
    header = struct.pack("<Q", length)
    path = tmp_path / "hostile"
    path.write_bytes(header + slow_mask(header) + bytes(20))
    for call in (_core.scan, lambda p: _core.scan(p, True), lambda p: _core.read_record(p, 0)):
        with pytest.raises(CorruptRecordError) as caught:
            call(str(path))
        assert caught.value.offset == 0


def test_a_compressed_file_is_told_apart(tmp_path):
    path = tmp_path / "a.tfrecord.gz"
    path.write_bytes(gzip.compress(slow_frame(b"x" * 100)))
    with pytest.raises(CorruptRecordError, match="looks compressed"):
        _core.scan(str(path))
