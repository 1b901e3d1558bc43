"""Sidecars: their frozen bytes, and every way in which they can be wrong."""

import numpy as np
import pytest

from cachecd_client import _core
from cachecd_client.errors import CorruptSidecarError
from tests.core.shards import slow_digest, slow_sidecar, write

UNITS = [(7, b"key", 0, b"etag")]


# One frame: length and its CRC, "cachecd" and its CRC.
FROZEN_SHARD = bytes.fromhex(
    """
    0700000000000000 bbd79f11
    63616368656364 de6d061f
    """
)

# Magic, version, meta_bytes, records, data_bytes, digest, units, units_bytes; meta; units; offsets;
# indices; ordinals; each with its CRC.
FROZEN_SIDECAR = bytes.fromhex(
    """
    4341434845434458 02000000 02000000 0100000000000000 1700000000000000 6e0fb7c0dced44a1
    01000000 22000000 d7d7ca93
    7b7d cf3dd743
    0000000000010000 0002000000000000 07000000 03000000 612f622e746172 226522 803e89ac
    0000000000000000 29039807
    00000000 a67b113a
    03000000 633f7f28
    """
)


@pytest.fixture
def shard(tmp_path):
    return write(tmp_path / "a.tfrecord", [b"one", b"", b"three"], meta='{"a": "é"}')


@pytest.fixture
def sidecar(shard):
    return shard.with_name(shard.name + ".idx")


def test_version_2_is_frozen(tmp_path):
    path = tmp_path / "frozen.tfrecord"
    writer = _core.ShardWriter(str(path))
    writer.describe(2**40, b"a/b.tar", 512, b'"e"')
    writer.append(b"cachecd", unit=2**40, ordinal=3)
    assert writer.finish("{}") == (23, 124)
    assert path.read_bytes() == FROZEN_SHARD
    assert path.with_name("frozen.tfrecord.idx").read_bytes() == FROZEN_SIDECAR


def test_what_was_written_is_read(sidecar, shard):
    read = _core.Sidecar.read(str(sidecar))
    assert len(read) == 3
    assert read.meta == '{"a": "é"}'
    assert read.data_bytes == shard.stat().st_size
    assert read.table == UNITS
    assert (read.offsets.dtype, read.offsets.tolist()) == (np.uint64, [0, 19, 35])
    assert (read.units.dtype, read.units.tolist()) == (np.uint64, [7, 7, 7])
    assert (read.indices.dtype, read.indices.tolist()) == (np.uint32, [0, 0, 0])
    assert (read.ordinals.dtype, read.ordinals.tolist()) == (np.uint32, [0, 1, 2])
    assert read.digest == slow_digest(UNITS, [0] * 3, [0, 1, 2])


def test_head_is_read_without_the_rest(sidecar, shard):
    whole = sidecar.read_bytes()
    sidecar.write_bytes(whole[:-1] + b"?")
    digest = slow_digest(UNITS, [0] * 3, [0, 1, 2])
    head = _core.read_sidecar_head(str(sidecar))
    assert head == ('{"a": "é"}', 3, shard.stat().st_size, digest, len(UNITS))
    sidecar.write_bytes(whole[:60] + b"?" + whole[61:])
    with pytest.raises(CorruptSidecarError, match="meta CRC"):
        _core.read_sidecar_head(str(sidecar))


def test_digests_of_shards_add_up_however_records_are_divided(tmp_path):
    """Neither the units' numbers nor the order of records counts."""
    records = [(key, ordinal) for key in (b"a", b"b", b"c") for ordinal in range(5)]

    def digest(name, records, first):
        writer = _core.ShardWriter(str(tmp_path / name))
        for key, ordinal in records:
            unit = first + key[0]
            writer.describe(unit, key, 0, b"e")
            writer.append(b"x", unit, ordinal)
        writer.finish("{}")
        assert writer.digest == _core.Sidecar.read(str(tmp_path / f"{name}.idx")).digest
        return writer.digest

    whole = digest("whole", records, 0)
    parts = digest("left", records[::2], 100), digest("right", records[::-1][1::2], 7)
    assert sum(parts) % 2**64 == whole
    assert digest("other", [*records[1:], (b"a", 5)], 0) != whole


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
    sidecar.write_bytes(slow_sidecar(b"{}", data_bytes, UNITS, offsets, zeros, zeros))
    with pytest.raises(CorruptSidecarError, match=r"offset \d+ of record|no records"):
        _core.Sidecar.read(str(sidecar))


@pytest.mark.parametrize(
    ("meta", "changes", "why"),
    [
        (b"{}", {"version": 1}, "version 1, expected 2: upgrade"),
        (b"\xff", {}, "UTF-8"),
        *((b"{}", {"records": n}, "not those of") for n in (1, *(2**i for i in (20, 32, 60, 63)))),
        (b"{}", {"records": 2**64 - 1}, "not those of"),
        *((b"{}", {"units": n}, "not those of") for n in (1, 2**20, 2**32 - 1)),
        (b"{}", {"digest": 1}, "digest"),
    ],
)
def test_a_header_or_meta_that_cannot_be_is_found(sidecar, meta, changes, why):
    sidecar.write_bytes(slow_sidecar(meta, 0, [], [], [], [], **changes))
    with pytest.raises(CorruptSidecarError, match=why):
        _core.Sidecar.read(str(sidecar))


def test_record_of_a_unit_that_is_not_there_is_found(sidecar):
    sidecar.write_bytes(slow_sidecar(b"{}", 16, UNITS, [0], [1], [0]))
    with pytest.raises(CorruptSidecarError, match="a record has unit 1 of 1"):
        _core.Sidecar.read(str(sidecar))


@pytest.mark.parametrize("units", [0, 2])
def test_units_that_do_not_end_with_their_section_are_found(sidecar, units):
    table = [(1, b"k" * 40, 0, b"e")]
    sidecar.write_bytes(slow_sidecar(b"{}", 0, table, [], [], [], units=units))
    with pytest.raises(CorruptSidecarError, match="its units do not end"):
        _core.Sidecar.read(str(sidecar))


def test_a_foreign_file_gets_a_sidecar(tmp_path):
    path = str(tmp_path / "foreign.idx")
    size = _core.write_sidecar(path, '{"schema": null}', 60, np.array([0, 20, 40], np.uint64))
    units = [(0, b"", 0, b"")]
    expected = slow_sidecar(b'{"schema": null}', 60, units, [0, 20, 40], [0, 0, 0], [0, 1, 2])
    assert (tmp_path / "foreign.idx").read_bytes() == expected
    assert size == len(expected)


def test_offsets_that_cannot_be_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="offset 1 of record 0"):
        _core.write_sidecar(str(tmp_path / "a.idx"), "{}", 40, np.array([1], np.uint64))
    assert list(tmp_path.iterdir()) == []
