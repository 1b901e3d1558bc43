"""Transforms with a step over groups."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from PIL import Image

from cachecd.config import DatasetConfig
from cachecd.errors import ConfigError
from cachecd.model import Unit
from cachecd.sampler.formats import grouped, open_format
from cachecd.sampler.formats.jsonl import values
from cachecd_client._core import decode_example, encode_example
from tests import zstandard
from tests.contracts.format import Bench, FormatContract
from tests.core.shards import frames
from tests.sampler.test_formats import PAYLOADS, RNG, TFRECORD

T = TypeVar("T")

SMALL = 9000
CONFIG = {**TFRECORD, "transform": [{"over_groups": "tests.sampler.steps:in_pairs"}]}


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped, "GROUP", SMALL)


def in_groups(records: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """The records of a unit in groups: a group ends with the record that brings it to SMALL bytes."""
    group: list[T] = []
    for record in records:
        group.append(record)
        if sum(map(size, group)) >= SMALL:
            yield group
            group = []
    if group:
        yield group


def values_of(record: bytes) -> dict[str, Any]:
    return {name: value[0] for name, (_, value) in decode_example(record).items()}


class TestOverGroups(FormatContract):
    config = CONFIG

    def objects(self) -> list[bytes]:
        return [frames(records) for records in PAYLOADS]

    def records(self) -> Iterator[tuple[int, int, bytes]]:
        for unit, records in enumerate(PAYLOADS):
            decoded = map(values_of, records)
            for number, group in enumerate(in_groups(decoded, lambda r: 64 + 8 + len(r["data"]))):
                for nth in range(0, len(group), 2):
                    data = b"".join(record["data"] for record in group[nth : nth + 2])
                    record = encode_example({"id": group[nth]["id"], "data": data})
                    yield unit, (number << 20) + nth // 2, record

    def test_a_unit_is_read_from_the_group_that_it_stopped_in(self, bench: Bench):
        *_, last = [record for record in self.records() if record[0] == 0]
        objects = self.objects()
        bench.capacity = 20 << 10
        units = [Unit(0, "0000", len(objects[0]))]
        seen: list[Unit] = []
        original = bench.source.span

        def span(unit: Unit) -> tuple[int, int] | None:
            seen.append(unit)
            return original(unit)

        bench.source.span = span  # type: ignore[method-assign]
        [*_, shard] = bench.pour_slices(units, objects)
        assert shard.records[-1] == last
        assert len({unit.offset for unit in seen}) > 2, "each shard begins at a group of its own"

    def test_a_part_without_an_offset_runs_only_the_groups_that_it_needs(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ):
        [*_, (_, ordinal, record)] = [record for record in self.records() if record[0] == 0]
        ran: list[int] = []
        [step] = bench.source._steps  # type: ignore[attr-defined]
        original = step.over

        def over(items: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
            ran.append(1)
            return original(items)

        monkeypatch.setattr(step, "over", over)
        body = self.objects()[0]
        [shard] = bench.pour_slices([Unit(0, "0000", len(body), record=ordinal)], [body])
        assert shard.records == [(0, ordinal, record)]
        assert len(ran) == 1

    def test_excluded_samples_cost_the_object(self, bench: Bench):
        objects = self.objects()[:2]
        units = [Unit(n, f"{n:04d}", len(body)) for n, body in enumerate(objects)]
        units[0] = replace(units[0], excluded=("a",))
        shards = bench.pour_slices(units, objects)
        assert {unit for shard in shards for unit, _, _ in shard.records} == {1}
        assert "exclude the whole object" in bench.set_aside[0]


class TestOverGroupsOfCompressedObjects(TestOverGroups):
    def objects(self) -> list[bytes]:
        return [gzip.compress(frames(records), mtime=0) for records in PAYLOADS]

    test_a_unit_is_read_from_the_group_that_it_stopped_in = None  # type: ignore[assignment]


def opened(folder: Path, *steps: object) -> Bench:
    config = {**TFRECORD, "transform": list(steps)}
    return Bench(open_format(DatasetConfig.model_validate(config), ()), folder)


def examples(*payloads: bytes) -> list[bytes]:
    return [frames([encode_example({"payload": payload}) for payload in payloads])]


WILD = {"over_groups": "tests.sampler.steps:wild_in_a_group"}


@pytest.mark.parametrize("steps", [[WILD], ["tests.sampler.steps:wild", WILD]])
def test_a_failing_function_costs_the_rest_of_the_unit_from_its_group_on(
    tmp_path: Path, steps: list[object]
):
    bench = opened(tmp_path, *steps)
    long = bytes(SMALL)
    [shard] = bench.pour(examples(long, b"a", b"raise", long, b"b"))
    assert [ordinal for _, ordinal, _ in shard.records] == [0]
    assert "ValueError: no good" in bench.set_aside[0]


def test_a_function_over_groups_that_gives_no_dict_costs_the_unit(tmp_path: Path):
    bench = opened(tmp_path, WILD)
    assert bench.pour(examples(b"number")) == []
    assert "gave int, expected an iterable of dicts" in bench.set_aside[0]


def test_a_bad_record_before_a_step_over_groups_costs_that_record(tmp_path: Path):
    bench = opened(tmp_path, WILD)
    good = encode_example({"payload": b"good"})
    [shard] = bench.pour([frames([good, b"\xff no protocol buffer", good])])
    assert [ordinal for _, ordinal, _ in shard.records] == [0, 1]
    assert bench.passed == [f"0000: offset {len(frames([good]))}"]


def test_an_unknown_function_over_groups_is_an_error_of_the_configuration(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"transform tests\.sampler\.steps:missing: cannot be"):
        opened(tmp_path, {"over_groups": "tests.sampler.steps:missing"})


# --- documents of JSON lines, packed into windows

TEXTS = [
    [f"{unit}-{n}:{'x' * int(length)}" for n, length in enumerate(RNG.integers(0, 900, 60))]
    for unit in range(4)
]
WINDOW, STRIDE = 64, 60
PACKED = {
    "source": {"url": "file:///nowhere", "format": "jsonl"},
    "transform": ["tests.sampler.steps:to_bytes", {"pack": {"window": WINDOW, "stride": STRIDE}}],
}


class TestPackedLines(FormatContract):
    config = PACKED

    def objects(self) -> list[bytes]:
        return [
            b"".join(json.dumps({"text": t}).encode() + b"\n" for t in texts) for texts in TEXTS
        ]

    def records(self) -> Iterator[tuple[int, int, bytes]]:
        for unit, texts in enumerate(TEXTS):
            for number, group in enumerate(in_groups(texts, lambda text: 64 + len(text))):
                tokens = "".join(group).encode()
                for nth in range((len(tokens) - WINDOW) // STRIDE + 1):
                    window = tokens[nth * STRIDE : nth * STRIDE + WINDOW]
                    yield unit, (number << 20) + nth, encode_example({"tokens": window})


class TestPackedLinesInGzip(TestPackedLines):
    suffix = ".jsonl.gz"

    def objects(self) -> list[bytes]:
        return [gzip.compress(body, mtime=0) for body in super().objects()]

    def test_a_restarted_unit_inflates_up_to_its_group_and_parses_no_line_before(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ):
        """The last group of the first object begins at `offset` of the inflated text."""
        *_, (_, ordinal, record) = [each for each in self.records() if each[0] == 0]
        groups = list(in_groups(TEXTS[0], lambda text: 64 + len(text)))
        before = [text for group in groups[:-1] for text in group]
        offset = sum(len(json.dumps({"text": text})) + 1 for text in before)
        body = self.objects()[0]
        parsed: list[bytes] = []
        original = values.LineParser.record

        def parse(parser: values.LineParser, line: bytes) -> values.Record:
            parsed.append(line)
            return original(parser, line)

        monkeypatch.setattr(values.LineParser, "record", parse)
        unit = Unit(0, bench.key(0), len(body), record=ordinal, offset=offset)
        [shard] = bench.pour_slices([unit], [body])
        assert shard.records == [(0, ordinal, record)]
        assert len(parsed) == len(groups[-1])


class TestPackedLinesInZstandard(TestPackedLines):
    suffix = ".jsonl.zst"

    def objects(self) -> list[bytes]:
        return [zstandard.frames(body) for body in super().objects()]


def windows_of(shards: list[Any]) -> list[list[int]]:
    return [list(values_of(record)["tokens"]) for s in shards for _, _, record in s.records]


@pytest.mark.parametrize(
    "steps",
    [
        ["tests.sampler.steps:reused", {"pack": {"window": 16}}],
        ["tests.sampler.steps:reused", {"pack": {"window": 16, "fit": "best"}}],
        [{"over_groups": "tests.sampler.steps:reused_in_a_group"}, {"pack": {"window": 16}}],
    ],
)
def test_a_function_may_yield_the_same_dict_and_array_again(tmp_path: Path, steps: list[object]):
    bench = opened(tmp_path, *steps)
    assert sorted(windows_of(bench.pour(examples(b"x")))) == [[1] * 16, [2] * 16]


def test_a_ready_made_step_that_refuses_a_record_costs_that_record_alone(tmp_path: Path):
    bench = opened(tmp_path, "decode_image", {"over_groups": "tests.sampler.steps:same"})
    good = io.BytesIO()
    Image.new("L", (2, 2)).save(good, "PNG")
    bench.pour(examples(good.getvalue(), b"no image", good.getvalue()))
    assert bench.set_aside == {}
    assert len(bench.passed) == 1


def test_a_function_may_change_the_shape_of_windows(tmp_path: Path):
    steps = [
        "tests.sampler.steps:tokens_of",
        {"pack": {"window": 16}},
        "tests.sampler.steps:shifted",
    ]
    bench = opened(tmp_path, *steps)
    [shard] = bench.pour(examples(bytes(range(40))))
    assert len(shard.records) == 2
    assert bench.schema is not None
    assert {f.name: f.shape for f in bench.schema.features} == {"targets": (15,), "tokens": (15,)}


def test_a_transform_that_drops_all_records_of_a_unit_says_so(tmp_path: Path):
    bench = opened(tmp_path, "tests.sampler.steps:keep_large", WILD)
    assert bench.pour(examples(b"tiny")) == []
    assert bench.set_aside[0] == "its transform returned no record"
