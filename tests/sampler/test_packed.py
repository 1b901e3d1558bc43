"""Objects that are compressed as a whole: each format keeps its contract, whatever they inflate to."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterator

import pytest

from cachecd.model import Unit
from cachecd.sampler.formats import tar, tfrecord, webdataset
from tests import zstandard
from tests.contracts.format import Bench, FormatContract
from tests.core.shards import frames
from tests.sampler import test_formats, test_webdataset
from tests.sampler.test_formats import PAYLOADS, huge
from tests.sampler.test_webdataset import archive


def by_halves(data: bytes) -> bytes:
    """As a parallel compressor does it: several members, here cut in the middle of a record."""
    half = len(data) // 2
    return gzip.compress(data[:half]) + gzip.compress(data[half:]) + bytes(100)


@pytest.mark.parametrize("key", ["a.jsonl.ZST", "a.zstd", "b/a.tzst", "a.tar.gz", "a.tgz", "a.z"])
def test_name_shows_that_an_object_is_compressed(key):
    assert Unit(0, key, 1).seems_packed
    assert not Unit(0, f"{key}.tar", 1).seems_packed


class Packed(FormatContract):
    """As the format, with its objects compressed."""

    plain: FormatContract
    compression = "GZIP"
    packers: tuple[Callable[[bytes], bytes], ...] = (gzip.compress, by_halves)

    @property
    def config(self):  # type: ignore[override]
        return self.plain.config

    def objects(self) -> list[bytes]:
        return [self.packers[n % 2](body) for n, body in enumerate(self.plain.objects())]

    def records(self) -> Iterator[tuple[int, int, bytes]]:
        return self.plain.records()

    def test_a_stream_that_is_cut_or_altered_ends_its_unit_and_keeps_the_records_before(
        self, bench: Bench
    ):
        bench.capacity = 1 << 20
        first, second = self.objects()[:2]
        expected = [r for r in self.records() if r[0] == 0]
        chance = random.Random(3)
        damaged = [first[:-1], first[:-8], first[: len(first) // 2], first[:13]]
        for _ in range(8):
            at = chance.randrange(20, len(first))
            damaged.append(
                first[:at] + bytes([first[at] ^ 1 << chance.randrange(8)]) + first[at + 1 :]
            )
        for body in damaged:
            bench.set_aside = {}
            [shard] = bench.pour([body, second])
            kept = [r for r in shard.records if r[0] == 0]
            assert "byte" in bench.set_aside[0]
            if len(body) < len(first):
                assert kept == expected[: len(kept)]
                assert f"{self.compression} stream is incomplete" in bench.set_aside[0]
            assert [r[:2] for r in shard.records if r[0] == 1] == [
                r[:2] for r in self.records() if r[0] == 1
            ]


class TestPackedTFRecord(Packed):
    plain = test_formats.TestTFRecord()

    def test_a_part_that_begins_within_an_object_is_never_taken_for_compressed(self, bench: Bench):
        body = b"ten records" + self.objects()[0]
        bench.pour_slices([Unit(0, "0000", len(body), record=10, offset=11)], [body])
        assert bench.set_aside[0].startswith("corrupt record at byte 11: ")


class TestPackedTFRecordThroughATransform(Packed):
    plain = test_formats.TestTFRecordThroughATransform()

    def test_a_record_of_more_than_may_be_inflated_is_not_waited_for(
        self, bench: Bench, monkeypatch
    ):
        monkeypatch.setattr(tfrecord, "LARGEST", 1 << 20)
        body = frames(PAYLOADS[0][:1]) + huge(1 << 40) + bytes(4 << 20)
        bench.pour([self.packers[0](body)])
        assert f"has {(1 << 40) + 16} bytes, expected at most {1 << 20}" in bench.set_aside[0]


class TestPackedWebDataset(Packed):
    plain = test_webdataset.TestWebDataset()

    def test_a_member_of_more_than_may_be_inflated_is_not_waited_for(
        self, bench: Bench, monkeypatch
    ):
        monkeypatch.setattr(tar, "LARGEST", 1 << 20)
        monkeypatch.setattr(webdataset, "LARGEST", 1 << 20)
        bomb = archive([("a.jpg", b"1"), ("b.jpg", bytes(8 << 20))])
        [shard] = bench.pour([self.packers[0](bomb)])
        assert shard.records
        assert (
            "'b.jpg' at byte 1024 has 8388608 bytes, expected at most 1048576 in a compressed tar"
            in (bench.set_aside[0])
        )

    def test_zeros_without_end_are_not_inflated_to_theirs(self, bench: Bench, monkeypatch):
        monkeypatch.setattr(tar, "LARGEST", 1 << 20)
        body = archive([("a.jpg", b"1")]) + bytes(8 << 20)
        [shard] = bench.pour([self.packers[0](body)])
        assert shard.records
        assert "bytes of zeros begin at byte 1024, the tar's end mark" in bench.set_aside[0]


class Zstandard:
    compression = "ZSTD"
    packers = (zstandard.compress, zstandard.frames)


class TestZstandardTFRecord(Zstandard, TestPackedTFRecord):
    pass


class TestZstandardTFRecordThroughATransform(Zstandard, TestPackedTFRecordThroughATransform):
    pass


class TestZstandardWebDataset(Zstandard, TestPackedWebDataset):
    def test_a_window_that_is_too_large_is_named(self, bench: Bench):
        [shard] = bench.pour([zstandard.wide(31), *self.objects()[1:2]])
        assert {unit for unit, _, _ in shard.records} == {1}
        assert (
            "a frame has a window of 2147483648 bytes, expected at most 134217728: compress it with a "
            "window of 128 MiB or less (zstd --long=27), near byte 18 of the object"
        ) in bench.set_aside[0]
