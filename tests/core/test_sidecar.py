"""Sidecars: their frozen bytes, and every way in which they can be wrong."""

import random
import struct

import numpy as np
import pytest

from cachecd_client import _core
from cachecd_client.errors import CorruptSidecarError
from tests.core.shards import slow_mask, write


def slow_sidecar(meta, data_bytes, offsets, units, ordinals, version=1, records=None):
    """The bytes of a sidecar, from docs/formats.md."""
    records = len(offsets) if records is None else records
    sections = [
        struct.pack("<8sIIQQ", b"CACHECDX", version, len(meta), records, data_bytes),
        meta,
        struct.pack(f"<{len(offsets)}Q", *offsets),
        struct.pack(f"<{len(units)}Q", *units),
        struct.pack(f"<{len(ordinals)}I", *ordinals),
    ]
    return b"".join(section + slow_mask(section) for section in sections)


# One frame: length and its CRC, "cachecd" and its CRC.
FROZEN_SHARD = bytes.fromhex(
    """
    0700000000000000 bbd79f11
    63616368656364 de6d061f
    """
)

# Magic, version, meta_bytes, records, data_bytes; meta; offsets; units; ordinals; each with its CRC.
FROZEN_SIDECAR = bytes.fromhex(
    """
    4341434845434458 01000000 02000000 0100000000000000 1700000000000000 2ac04aa4
    7b7d cf3dd743
    0000000000000000 29039807
    0000000000010000 aa3d6be4
    03000000 633f7f28
    """
)


@pytest.fixture
def shard(tmp_path):
    return write(tmp_path / "a.tfrecord", [b"one", b"", b"three"], meta='{"a": "é"}')


@pytest.fixture
def sidecar(shard):
    return shard.with_name(shard.name + ".idx")


def test_the_bytes_are_those_of_the_description(shard, sidecar):
    meta = '{"a": "é"}'.encode()
    data_bytes = shard.stat().st_size
    assert sidecar.read_bytes() == slow_sidecar(meta, data_bytes, [0, 19, 35], [7] * 3, [0, 1, 2])


def test_version_1_is_frozen(tmp_path):
    path = tmp_path / "frozen.tfrecord"
    writer = _core.ShardWriter(str(path))
    writer.append(b"cachecd", unit=2**40, ordinal=3)
    assert writer.finish("{}") == (23, 74)
    assert path.read_bytes() == FROZEN_SHARD
    assert path.with_name("frozen.tfrecord.idx").read_bytes() == FROZEN_SIDECAR


def test_what_was_written_is_read(sidecar, shard):
    read = _core.Sidecar.read(str(sidecar))
    assert len(read) == 3
    assert read.meta == '{"a": "é"}'
    assert read.data_bytes == shard.stat().st_size
    assert (read.offsets.dtype, read.offsets.tolist()) == (np.uint64, [0, 19, 35])
    assert (read.units.dtype, read.units.tolist()) == (np.uint64, [7, 7, 7])
    assert (read.ordinals.dtype, read.ordinals.tolist()) == (np.uint32, [0, 1, 2])


def test_what_was_read_cannot_be_written_to(sidecar):
    read = _core.Sidecar.read(str(sidecar))
    for array in (read.offsets, read.units, read.ordinals):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_arrays_outlive_the_sidecar(sidecar):
    offsets = _core.Sidecar.read(str(sidecar)).offsets
    assert offsets.tolist() == [0, 19, 35]


def test_every_altered_bit_is_found(sidecar):
    good = sidecar.read_bytes()
    for at in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            sidecar.write_bytes(bad)
            with pytest.raises(CorruptSidecarError) as caught:
                _core.Sidecar.read(str(sidecar))
            assert caught.value.path == str(sidecar)
            assert caught.value.why


def test_every_truncation_is_found(sidecar):
    good = sidecar.read_bytes()
    for size in range(len(good)):
        sidecar.write_bytes(good[:size])
        with pytest.raises(CorruptSidecarError):
            _core.Sidecar.read(str(sidecar))


def test_a_byte_too_many_is_found(sidecar):
    sidecar.write_bytes(sidecar.read_bytes() + b"\0")
    with pytest.raises(CorruptSidecarError, match="bytes"):
        _core.Sidecar.read(str(sidecar))


@pytest.mark.parametrize(
    ("offsets", "data_bytes"),
    [
        ([1], 17),  # does not start at the file's start
        ([0, 15], 40),  # leaves no room for a frame
        ([0, 0], 40),
        ([0, 20, 19], 60),  # descends
        ([0, 30], 40),  # the last does not end within the file
        ([0, 2**64 - 1], 2**64 - 1),
        ([0, 2**64 - 16], 2**64 - 8),
        ([], 16),  # nothing points to what is there
    ],
)
def test_offsets_that_cannot_be_are_found_though_their_crc_is_right(sidecar, offsets, data_bytes):
    zeros = [0] * len(offsets)
    sidecar.write_bytes(slow_sidecar(b"{}", data_bytes, offsets, zeros, zeros))
    with pytest.raises(CorruptSidecarError, match=r"offset \d+ of record|no records"):
        _core.Sidecar.read(str(sidecar))


@pytest.mark.parametrize(
    ("meta", "changes", "why"),
    [
        (b"{}", {"version": 2}, "version 2, expected 1: upgrade"),
        (b"\xff", {}, "UTF-8"),
        *((b"{}", {"records": n}, "not those of") for n in (1, *(2**i for i in (20, 32, 60, 63)))),
        (b"{}", {"records": 2**64 - 1}, "not those of"),
    ],
)
def test_a_header_or_meta_that_cannot_be_is_found(sidecar, meta, changes, why):
    sidecar.write_bytes(slow_sidecar(meta, 0, [], [], [], **changes))
    with pytest.raises(CorruptSidecarError, match=why):
        _core.Sidecar.read(str(sidecar))


def test_random_bytes_are_no_sidecar(sidecar):
    source = random.Random(4)
    for size in (0, 1, 7, 8, 35, 36, 51, 52, 53, 500):
        sidecar.write_bytes(source.randbytes(size))
        with pytest.raises(CorruptSidecarError):
            _core.Sidecar.read(str(sidecar))


def test_a_missing_sidecar_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        _core.Sidecar.read(str(tmp_path / "missing.idx"))
    assert caught.value.filename == str(tmp_path / "missing.idx")


def test_a_foreign_file_gets_a_sidecar(tmp_path):
    path = str(tmp_path / "foreign.idx")
    size = _core.write_sidecar(path, '{"schema": null}', 60, np.array([0, 20, 40], np.uint64))
    expected = slow_sidecar(b'{"schema": null}', 60, [0, 20, 40], [0, 0, 0], [0, 1, 2])
    assert (tmp_path / "foreign.idx").read_bytes() == expected
    assert size == len(expected)


def test_a_sidecar_is_not_overwritten(sidecar):
    before = sidecar.read_bytes()
    with pytest.raises(FileExistsError):
        _core.write_sidecar(str(sidecar), "{}", 0, np.array([], np.uint64))
    assert sidecar.read_bytes() == before


def test_offsets_that_cannot_be_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="offset 1 of record 0"):
        _core.write_sidecar(str(tmp_path / "a.idx"), "{}", 40, np.array([1], np.uint64))
    assert list(tmp_path.iterdir()) == []


def test_a_huge_file_of_another_tools_is_refused_before_it_is_read(shard, sidecar):
    with open(sidecar, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptSidecarError, match="CACHECDX"):
        _core.Sidecar.read(str(sidecar))
