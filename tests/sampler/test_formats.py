"""Each format keeps the contract, and what is special about it."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cachecd.config import DatasetConfig, SourceConfig
from cachecd.errors import SourceUnreachableError
from cachecd.sampler.formats import open_format
from cachecd_client._core import decode_example, encode_example, masked_crc32c
from cachecd_client.schema import Feature, Schema
from tests.contracts.format import CAPACITY, Bench, FormatContract, TwiceContract
from tests.core.shards import frames
from tests.sampler import steps

CONFIG = {"source": {"url": "file:///nowhere", "format": "files"}}
TFRECORD = {"source": {"url": "file:///nowhere", "format": "tfrecord"}}
RNG = np.random.default_rng(5)
BODIES = [RNG.bytes(size) for size in (10, 0, 3000, 9000, 1, 8000) * 8]
PAYLOADS = [
    [
        encode_example({"id": 100 * unit + n, "data": RNG.bytes(int(size))})
        for n, size in enumerate(RNG.integers(0, 4000, 30))
    ]
    for unit in range(4)
]


def huge(length: int) -> bytes:
    """How a record of that length begins."""
    head = struct.pack("<Q", length)
    return head + struct.pack("<I", masked_crc32c(head))


class TestFiles(FormatContract):
    config = CONFIG

    def objects(self) -> list[bytes]:
        return BODIES

    def records(self) -> Iterator[tuple[int, int, bytes]]:
        for unit, body in enumerate(BODIES):
            yield unit, 0, encode_example({"key": f"{unit:04d}".encode(), "payload": body})

    def test_an_object_larger_than_a_shard_is_set_aside_without_being_fetched(self, bench: Bench):
        [shard] = bench.pour([b"small", bytes(CAPACITY + 1), b"too"])
        assert [unit for unit, _, _ in shard.records] == [0, 2]
        assert f"{CAPACITY + 1} bytes" in bench.set_aside[1]
        assert "shard_size" in bench.set_aside[1]
        assert bench.taken == 8

    def test_a_key_that_is_not_utf8_keeps_its_bytes(self, bench: Bench):
        key = os.fsdecode(b"caf\xe9")
        [shard] = bench.pour([b"x"], [key])
        assert decode_example(shard.records[0][2])["key"] == ("bytes", [b"caf\xe9"])


class TestFilesThroughATransform(TwiceContract):
    plain = TestFiles()


class TestFilesWithLabels:
    source = SourceConfig.model_validate(
        {**CONFIG["source"], "label": {"pattern": r"^([^/]+)/"}}  # type: ignore[dict-item]
    )

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        config = DatasetConfig(source=self.source)
        return Bench(open_format(config, ("cat", "dog")), tmp_path)

    def test_the_label_is_the_number_of_the_class_and_the_schema_names_it(self, bench: Bench):
        [shard] = bench.pour([b"1", b"2", b"3"], ["dog/1", "cat/2", "dog/3"])
        labels = [decode_example(record)["label"] for _, _, record in shard.records]
        assert labels == [("int64", [1]), ("int64", [0]), ("int64", [1])]
        assert bench.schema is not None
        assert bench.schema["label"] == Feature(
            "label", "int64", "int64", (), classes=("cat", "dog")
        )

    def test_a_class_that_is_not_listed_yet_is_not_blamed_on_the_unit(self, bench: Bench):
        with pytest.raises(SourceUnreachableError, match="class 'bird' of 'bird/1' has no number"):
            bench.pour([b"1"], ["bird/1"])
        assert bench.set_aside == {}

    def test_an_object_of_a_class_that_is_not_configured_is_set_aside_without_being_fetched(
        self, tmp_path: Path
    ):
        label = {"pattern": r"^([^/]+)/", "classes": ["dog", "cat"]}
        source = SourceConfig.model_validate({**CONFIG["source"], "label": label})  # type: ignore[dict-item]
        bench = Bench(open_format(DatasetConfig(source=source), source.classes), tmp_path)
        [shard] = bench.pour([b"1", b"22", b"3"], ["cat/1", "bird/1", "dog/1"])
        labels = [decode_example(record)["label"] for _, _, record in shard.records]
        assert labels == [("int64", [1]), ("int64", [0])]
        assert bench.set_aside == {
            1: "class 'bird' is not in label.classes: add it to the list (which makes a new "
            "generation), or move its objects to another prefix"
        }
        assert bench.taken == 2


class TestTFRecord(FormatContract):
    """Verbatim: records need not even be Examples, but for the schema's sake these are."""

    config = TFRECORD

    def objects(self) -> list[bytes]:
        return [frames(records) for records in PAYLOADS]

    def records(self) -> Iterator[tuple[int, int, bytes]]:
        for unit, records in enumerate(PAYLOADS):
            for ordinal, record in enumerate(records):
                yield unit, ordinal, record

    def test_records_that_do_not_fit_the_schema_cost_no_other(self, bench: Bench):
        bench.schema = Schema((Feature("x", "bytes", "bytes", ()),))
        good = encode_example({"x": b"1"})
        records = [b"\xff\xfe no protocol buffer", good, b"", encode_example({"x": b"2", "y": 1})]
        [shard] = bench.pour([frames([*records, good, encode_example({"x": [b"3"] * 2})])])
        assert [ordinal for _, ordinal, _ in shard.records] == [1, 4]
        assert bench.passed == [f"0000: record {n}" for n in (0, 2, 3, 5)]
        assert all(
            reason.startswith("record does not fit the schema: ") for reason in bench.reasons
        )
        assert "feature 'y' is not in the schema" in bench.reasons[2]

    def test_many_misfits_are_all_counted(self, bench: Bench):
        bench.schema = Schema((Feature("x", "bytes", "bytes", ()),))
        odd, good = encode_example({"x": 1}), encode_example({"x": b"1"})
        [shard] = bench.pour([frames([*[odd] * 250, good])])
        assert [ordinal for _, ordinal, _ in shard.records] == [250]
        assert len(bench.passed) >= 10

    def test_the_schema_comes_from_the_first_records(self, bench: Bench):
        records = [encode_example({"n": [1] * (1 + number % 2), "x": 0.5}) for number in range(70)]
        bench.pour([frames(records)])
        assert bench.schema == Schema(
            (Feature("n", "int64", "int64", None), Feature("x", "float", "float32", ()))
        )

    def test_records_of_no_schema_set_their_unit_aside(self, bench: Bench):
        [shard] = bench.pour([frames([b"\xff\xff"]), frames([encode_example({"x": 7})])])
        assert "no schema fits its first 1 records" in bench.set_aside[0]
        assert [unit for unit, _, _ in shard.records] == [1]

    @pytest.mark.parametrize("at", [0, 29])
    @pytest.mark.parametrize("part", ["length", "length's CRC", "data", "data's CRC"])
    @pytest.mark.parametrize("known", [False, True], ids=["schema unknown", "schema known"])
    def test_a_corrupt_record_ends_its_unit_and_those_before_it_stay(
        self, bench: Bench, at: int, part: str, known: bool
    ):
        if known:
            bench.pour(self.objects())
        first, *others = self.objects()
        offset = len(frames(PAYLOADS[0][:at]))
        end = offset + len(frames([PAYLOADS[0][at]]))
        flip = {"length": 0, "length's CRC": 8, "data": 12, "data's CRC": end - offset - 1}[part]
        damaged = bytearray(first)
        damaged[offset + flip] ^= 1
        shards = bench.pour([bytes(damaged), *others])
        good = [r for r in self.records() if r[0] > 0 or r[1] < at]
        assert [r for s in shards for r in s.records] == good
        assert bench.set_aside[0].startswith(f"corrupt record at byte {offset}: ")
        assert ("records before it are kept" in bench.set_aside[0]) == (at > 0)

    @pytest.mark.parametrize("missing", [1, 100])
    def test_a_truncated_object_ends_there_with_the_offset(self, bench: Bench, missing: int):
        first, *others = self.objects()
        shards = bench.pour([first[:-missing], *others])
        last = len(first) - len(frames([PAYLOADS[0][29]]))
        assert [r for s in shards for r in s.records] == [
            r for r in self.records() if r[:2] != (0, 29)
        ]
        assert f"truncated: the record at byte {last} has " in bench.set_aside[0]

    def test_an_object_without_records_is_set_aside(self, bench: Bench):
        shards = bench.pour([b"", self.objects()[0]])
        assert bench.set_aside == {0: "it has no records"}
        assert {unit for s in shards for unit, _, _ in s.records} == {1}

    @pytest.mark.parametrize("known", [False, True], ids=["schema unknown", "schema known"])
    def test_a_record_that_can_never_fit_is_not_waited_for(self, bench: Bench, known: bool):
        bench.schema = Schema(()) if known else None
        assert bench.pour([huge(1 << 60) + b"x" * 100]) == []
        assert (
            f"truncated: the record at byte 0 has 112 bytes of {(1 << 60) + 16}"
            in bench.set_aside[0]
        )

    def test_a_record_of_more_than_a_shard_costs_no_other(self, bench: Bench):
        bodies = [encode_example({"x": bytes(n)}) for n in (5, 2 * CAPACITY, 7)]
        shards = bench.pour([frames(bodies)])
        assert [r[1:] for s in shards for r in s.records] == [(0, bodies[0]), (2, bodies[2])]
        assert bench.passed == ["0000: record 1"]
        assert "raise cache.shard_size" in bench.reasons[0]

    def test_a_sequence_example_is_refused_by_name(self, bench: Bench):
        sequence = encode_example({"id": 1}) + b"\x12\x00"
        assert bench.pour([frames([sequence] * 3)]) == []
        assert "record 0: a tf.train.SequenceExample (feature_lists)" in bench.set_aside[0]


class TestTFRecordThroughATransform(TwiceContract):
    plain = TestTFRecord()

    def test_one_value_is_that_value_and_several_are_an_array(self, tmp_path: Path):
        config = {**TFRECORD, "transform": ["tests.sampler.steps:remember"]}
        bench = Bench(open_format(DatasetConfig.model_validate(config), ()), tmp_path)
        steps.seen.clear()
        record = {"i": 7, "is": [1, 2], "f": 0.5, "fs": [0.5, 1.5], "b": b"x", "bs": [b"y", b"z"]}
        bench.pour([frames([encode_example(record)])])
        [found] = steps.seen
        assert (found["i"], found["f"], found["b"], found["bs"]) == (7, 0.5, b"x", [b"y", b"z"])
        assert found["is"].dtype == np.int64
        assert found["fs"].dtype == np.float32
        assert found["is"].tolist() == [1, 2]
        assert found["fs"].tolist() == [0.5, 1.5]

    def test_a_record_that_is_no_example_costs_no_other(self, bench: Bench):
        shards = bench.pour([frames([PAYLOADS[0][0], b"\xff\xff\xff", PAYLOADS[0][1]])])
        assert [ordinal for s in shards for _, ordinal, _ in s.records] == [0, 1, 3, 4]
        assert bench.passed == ["0000: record 2"]
        assert bench.reasons[0].startswith("not an Example")
