"""Parquet files that pyarrow wrote become records; what is wrong with one costs its unit."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import io
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cachecd.config import DatasetConfig, SourceConfig
from cachecd.model import Unit
from cachecd.sampler.formats import open_format
from cachecd.sampler.formats.parquet.rows import Parquet
from cachecd_client._core import decode_example, encode_example
from cachecd_client.schema import Feature, Schema
from tests.contracts.format import Bench, FormatContract, Given, TwiceContract

RNG = np.random.default_rng(8)
CONFIG = {"source": {"url": "file:///nowhere", "format": "parquet"}}


def parquet(table: Any, **how: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(table), file, **how)
    return file.getvalue()


def bench_of(folder: Path, **source: Any) -> Bench:
    config = {"source": {**CONFIG["source"], **source}}
    return Bench(open_format(DatasetConfig.model_validate(config), ()), folder, capacity=1 << 22)


def read(table: Any) -> list[dict[str, Any]]:
    body = parquet(table)
    source = Parquet(SourceConfig.model_validate(CONFIG["source"]), transformed=True)
    given = Given(body, nothing(), "", False, lambda length: None)

    async def all_of_them() -> list[dict[str, Any]]:
        return [record async for _, record in source.read(Unit(0, "k", len(body)), given)]

    return asyncio.run(all_of_them())


async def nothing() -> AsyncIterator[bytes]:
    return
    yield b""


ROWS = [
    [
        {"id": 1000 * unit + row, "image": RNG.bytes(int(size)), "name": f"ä{row}"}
        for row, size in enumerate(RNG.integers(0, 4000, 30))
    ]
    for unit in range(4)
]


class TestParquet(FormatContract):
    config = CONFIG

    def objects(self) -> list[bytes]:
        return [parquet(pa.Table.from_pylist(rows), row_group_size=7) for rows in ROWS]

    def records(self) -> Iterator[tuple[int, int, bytes]]:
        for unit, rows in enumerate(ROWS):
            for ordinal, row in enumerate(rows):
                yield unit, ordinal, encode_example({**row, "name": row["name"].encode()})


class TestParquetThroughATransform(TwiceContract):
    plain = TestParquet()


# --- values


def test_every_type_becomes_what_the_reference_says():
    day = datetime.datetime(2020, 1, 1)
    table = pa.table(
        {
            "int8": pa.array([-3], pa.int8()),
            "uint64": pa.array([2**64 - 1], pa.uint64()),
            "bool": [True],
            "half": pa.array(np.array([0.5], np.float16)),
            "float": pa.array([0.25], pa.float32()),
            "double": [0.1],
            "decimal": [decimal.Decimal("1.25")],
            "day": [day.date()],
            "at": pa.array([day], pa.timestamp("ms")),
            "text": ["ä"],
            "large": pa.array([b"x"], pa.large_binary()),
            "fixed": pa.array([b"abc"], pa.binary(3)),
            "class": pa.array(["cat"]).dictionary_encode(),
            "nothing": pa.nulls(1),
        }
    )
    [found] = read(table)
    assert found == {
        "int8": -3,
        "uint64": 2**64 - 1,
        "bool": 1,
        "half": 0.5,
        "float": 0.25,
        "double": 0.1,
        "decimal": 1.25,
        "day": 18262,
        "at": 1_577_836_800_000_000,
        "text": "ä".encode(),
        "large": b"x",
        "fixed": b"abc",
        "class": b"cat",
    }
    assert [type(found[name]) for name in ("bool", "half", "float")] == [int, float, float]
    assert [type(found[name]) for name in ("double", "uint64")] == [np.float64, np.uint64]


def test_two_columns_of_one_name_are_refused_only_if_they_are_wanted(tmp_path: Path):
    twice = pa.table([[1], [2], [3]], names=["a", "a", "b"])
    bench = bench_of(tmp_path, columns=["b"])
    [shard] = bench.pour([parquet(twice)])
    assert [decode_example(record) for _, _, record in shard.records] == [{"b": ("int64", [3])}]
    (tmp_path / "all").mkdir()
    bench = bench_of(tmp_path / "all")
    bench.pour([parquet(twice)])
    assert "2 of its columns have the name 'a'" in bench.set_aside[0]


def test_structs_are_flattened_and_images_are_their_bytes():
    image = {"bytes": b"jpeg", "path": "1.jpg"}
    rows = [
        {
            "image": image,
            "pages": [image, image],
            "meta": {"width": 3, "camera": {"make": "x"}},
            "boxes": [{"kind": 1, "name": "a"}, {"kind": 2, "name": "b"}],
        }
    ]
    [found] = read(pa.Table.from_pylist(rows))
    assert found.pop("boxes.kind").tolist() == [1, 2]
    assert found == {
        "image": b"jpeg",
        "pages": [b"jpeg", b"jpeg"],
        "meta.width": 3,
        "meta.camera.make": b"x",
        "boxes.name": [b"a", b"b"],
    }


def test_a_map_is_its_keys_and_its_values():
    table = {"m": pa.array([[("a", 1), ("b", 2)]], pa.map_(pa.string(), pa.int64()))}
    [found] = read(table)
    assert (found["m.key"], found["m.value"].tolist()) == ([b"a", b"b"], [1, 2])


def test_lists_become_arrays_and_lists_of_lists_arrays_of_more_dimensions():
    table = pa.table(
        {
            "ragged": pa.array([[1], [], [2, 3]], pa.list_(pa.int16())),
            "vector": pa.array([[1, 2]] * 3, pa.list_(pa.float32(), 2)),
            "matrix": [[[1, 2], [3, 4]], [[5, 6]], [[7, 8], [9, 10]]],
            "jagged": [[[1], [2, 3]]] * 3,
            "gaps": [[0.5, None]] * 3,
        }
    )
    found = read(table)
    assert [r["ragged"].tolist() for r in found] == [[1], [], [2, 3]]
    assert {r["ragged"].dtype for r in found} == {np.dtype(np.int16)}
    assert {(r["vector"].dtype.name, r["vector"].shape) for r in found} == {("float32", (2,))}
    assert [r["matrix"].shape for r in found] == [(2, 2), (1, 2), (2, 2)]
    assert found[2]["matrix"].tolist() == [[7, 8], [9, 10]]
    assert [row.tolist() for row in found[0]["jagged"]] == [[1], [2, 3]]
    assert np.isnan(found[0]["gaps"][1])


def test_a_null_makes_its_feature_missing():
    table = {"a": [1, None], "s": [None, "x"], "l": [None, [1]], "d": [0.5, None]}
    first, second = read(table)
    assert first == {"a": 1, "d": 0.5}
    assert second.pop("l").tolist() == [1]
    assert second == {"s": b"x"}


def test_the_schema_follows_from_types_statistics_and_first_rows(tmp_path: Path):
    classes = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    notes = {"huggingface": json.dumps({"info": {"features": classes}})}
    table = pa.table(
        {
            "label": [0, 1],
            "maybe": [None, 7],
            "double": [0.5, 0.25],
            "tokens": [[1], [1, 2]],
            "embedding": pa.array([[1, 2]] * 2, pa.list_(pa.float32())),
            "words": [["a"], ["b"]],
        }
    ).replace_schema_metadata(notes)
    bench = bench_of(tmp_path)
    [shard] = bench.pour([parquet(table)])
    assert bench.set_aside == {}
    assert bench.schema is not None
    assert {f.name: f for f in bench.schema.features} == {
        "label": Feature("label", "int64", "int64", (), classes=("cat", "dog")),
        "maybe": Feature("maybe", "int64", "int64", None),
        "double": Feature("double", "bytes", "float64", (), raw=True),
        "tokens": Feature("tokens", "int64", "int64", None),
        "embedding": Feature("embedding", "float", "float32", (2,)),
        "words": Feature("words", "bytes", "bytes", None),
    }
    first, second = (decode_example(record) for _, _, record in shard.records)
    assert "maybe" not in first
    assert second["maybe"] == ("int64", [7])
    assert second["tokens"] == ("int64", [1, 2])


@pytest.mark.parametrize(
    ("kind", "dtype", "values"),
    [
        (pa.float64(), "float64", [16777217.0, None, 1e300]),
        (pa.uint64(), "uint64", [2**64 - 1, None, 2**63 + 5]),
        (pa.decimal128(38, 10), "float64", [decimal.Decimal("12345678.91"), None]),
        (pa.list_(pa.float64()), "float64", [[0.1, 1e300], [], [16777217.0]]),
        (pa.list_(pa.uint8()), "uint8", [[1, 255], [], [3]]),
        (pa.list_(pa.decimal128(12, 2)), "float64", [[decimal.Decimal("0.10")], []]),
    ],
)
def test_ragged_columns_keep_their_dtype_and_every_value(tmp_path: Path, kind, dtype, values):
    bench = bench_of(tmp_path)
    [shard] = bench.pour([parquet(pa.table({"x": pa.array(values, kind)}))])
    assert bench.schema == Schema((Feature("x", "bytes", dtype, None, raw=True),))
    found = [
        np.frombuffer(example["x"][1][0], dtype).tolist() if example else []
        for example in (decode_example(record) for _, _, record in shard.records)
    ]
    listed = [v if isinstance(v, list) else [] if v is None else [v] for v in values]
    assert found == [[float(n) if dtype == "float64" else n for n in row] for row in listed]


def test_a_value_that_cannot_be_stored_costs_its_row_alone(tmp_path: Path):
    """Whichever row of a batch it is, and however deep in a list."""
    tenth, wide = decimal.Decimal("0.10"), decimal.Decimal("12345678901234567.891")
    rows = [[tenth], [tenth, wide], [], [tenth, tenth], [wide]]
    kind = pa.list_(pa.decimal128(30, 3))
    bench = bench_of(tmp_path)
    [shard] = bench.pour([parquet(pa.table({"x": pa.array(rows, kind)}))])
    assert [ordinal for _, ordinal, _ in shard.records] == [0, 2, 3]
    assert bench.passed == ["0000: record 1", "0000: record 4"]
    lists = pa.array([["a"], [None], ["c"]], pa.list_(pa.string()))
    bench = bench_of(tmp_path)
    [shard] = bench.pour([parquet(pa.table({"x": lists}))])
    assert [ordinal for _, ordinal, _ in shard.records] == [0, 2]


DAY = datetime.datetime(2020, 1, 1)


def test_times_have_the_unit_of_the_first_file_and_the_schema_names_it(tmp_path: Path):
    bench = bench_of(tmp_path)
    whole = {
        "at": pa.array([DAY], pa.timestamp("us")),
        "day": pa.array([DAY.date()]),
        "noon": pa.array([datetime.time(12)], pa.time64("us")),
        "took": pa.array([datetime.timedelta(seconds=2)], pa.duration("ms")),
    }
    others = [
        {**whole, "at": pa.array([1_577_836_800], pa.timestamp("s"))},
        {**whole, "at": pa.array([1_577_836_800_000_001_000], pa.timestamp("ns"))},
        {**whole, "at": pa.array([1_577_836_800_000_001_001], pa.timestamp("ns"))},
        {**whole, "day": pa.array([DAY], pa.timestamp("s"))},
        {**whole, "noon": pa.array([DAY], pa.timestamp("us"))},
        {**whole, "at": [1_577_836_800_000_000]},
        {**whole, "at": pa.array([DAY.date()])},
    ]
    [shard] = bench.pour([parquet(whole), *map(parquet, others)])
    assert bench.schema is not None
    assert {f.name: f.unit for f in bench.schema.features} == {
        "at": "us since 1970",
        "day": "days since 1970",
        "noon": "us since midnight",
        "took": "ms",
    }
    assert "at int64[] (us since 1970)" in str(bench.schema)
    assert Schema.from_json(bench.schema.to_json()) == bench.schema
    found = {unit: decode_example(record) for unit, _, record in shard.records}
    times = {unit: (each["at"][1][0], each["day"][1][0]) for unit, each in found.items()}
    start = 1_577_836_800_000_000
    same = (start, 18262)
    assert times == {0: same, 1: same, 2: (start + 1, 18262), 4: same, 7: same}
    assert "int64 cannot hold Decimal('1577836800000001.001')" in bench.set_aside[3]
    assert "has us since 1970, the schema says us since midnight" in bench.set_aside[5]
    assert "has plain numbers, the schema says us since 1970" in bench.set_aside[6]


def test_a_transform_gets_days_or_microseconds():
    table = {
        "at": pa.array([DAY], pa.timestamp("s")),
        "fine": pa.array([1_001], pa.timestamp("ns")),
        "day": pa.array([DAY], pa.date64()),
        "list": pa.array([[DAY]], pa.list_(pa.timestamp("ms"))),
    }
    [found] = read(table)
    assert found.pop("list").tolist() == [1_577_836_800_000_000]
    assert found == {
        "at": 1_577_836_800_000_000,
        "fine": decimal.Decimal("1.001"),
        "day": 18262,
    }


def test_int96_is_read_as_microseconds(tmp_path: Path):
    times = [datetime.datetime(9999, 12, 31), datetime.datetime(1, 1, 1), DAY]
    table = {"at": pa.array(times, pa.timestamp("us"))}
    bench = bench_of(tmp_path)
    [shard] = bench.pour([parquet(table, use_deprecated_int96_timestamps=True, store_schema=False)])
    found = [decode_example(record)["at"][1][0] for _, _, record in shard.records]
    epoch, us = datetime.datetime(1970, 1, 1), datetime.timedelta(microseconds=1)
    assert found == [(time - epoch) // us for time in times]
    assert bench.schema is not None
    assert bench.schema["at"].unit == "us since 1970"


def test_integers_in_a_column_of_doubles_are_exact_or_refused(tmp_path: Path):
    bench = bench_of(tmp_path)
    bench.pour(
        [
            parquet({"x": [0.5]}),
            parquet({"x": [2**53]}),
            parquet({"x": [2**53 + 1]}),
            parquet({"x": pa.array([decimal.Decimal("0.1")], pa.decimal128(30, 1))}),
            parquet({"x": pa.array([decimal.Decimal("0.12345678901234567891")])}),
        ]
    )
    assert [*bench.set_aside] == [2, 4]
    assert "int64 9007199254740993, which float64 cannot hold" in bench.set_aside[2]
    assert "float64 cannot hold Decimal('0.12345678901234567891')" in bench.set_aside[4]


def test_what_the_schema_cannot_hold_sets_its_unit_aside_and_names_the_column(tmp_path: Path):
    jagged = parquet({"a": [1], "boxes": [[[1], [2, 3]]]})
    fine, null, wide = (
        parquet({"a": [a], "v": [v]}) for a, v in ((1, [1]), (None, [1]), (1, [1, 2]))
    )
    bench = bench_of(tmp_path)
    [shard] = bench.pour([jagged, fine, null, wide])
    assert [unit for unit, _, _ in shard.records] == [1]
    assert "column 'boxes' has lists of lists of different lengths" in bench.set_aside[0]
    assert "missing ['a']" in bench.set_aside[2]
    assert "feature 'v': record has int64[2], the schema says int64[1]" in bench.set_aside[3]
